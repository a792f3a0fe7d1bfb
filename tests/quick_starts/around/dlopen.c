/* Around the lines of docs/install.md that load the library. */
#include <dlfcn.h>
#include <routecap.h>
#include <stdio.h>

int main(void) {
#pragma GCC diagnostic ignored "-Wpedantic"
    /* BLOCK */
    if (api == NULL || api->size < sizeof *api) return 1;
    printf("%u\n", api->version());
    return 0;
}
