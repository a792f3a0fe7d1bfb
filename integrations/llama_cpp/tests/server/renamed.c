/* For check.py: a dlsym that does not find the function that RENAMED names, as if llama.cpp had
 * another name for it. To be loaded behind the library to preload. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (next == NULL) *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    const char *renamed = getenv("RENAMED");
    return renamed != NULL && strcmp(name, renamed) == 0 ? NULL : next(handle, name);
}
