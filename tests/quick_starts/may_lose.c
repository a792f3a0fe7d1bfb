/*
 * Preloaded, it has every capturer lose steps as one on a slow device would: it files nothing until
 * somebody waits for a step, and a step beyond config.slots is lost. It needs no device for that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <routecap.h>
#include <stdio.h>
#include <stdlib.h>

int32_t routecap_capturer_create(const routecap_config *config, routecap_capturer **capturer) {
    void *library = dlopen("libroutecap.so.1", RTLD_NOW | RTLD_NOLOAD);
    int32_t (*create)(const routecap_config *, routecap_capturer **) = NULL;
    if (library != NULL) *(void **)&create = dlsym(library, "routecap_capturer_create");
    if (create == NULL || config->struct_size != sizeof *config) {
        fprintf(stderr, "may_lose: %s\n",
                create == NULL ? "the library is not loaded" : "a configuration of another size");
        exit(1);
    }
    routecap_config slow = *config;
    slow.backend = ROUTECAP_BACKEND_HOST;
    slow.flags |= ROUTECAP_CONFIG_MAY_LOSE | ROUTECAP_CONFIG_MANUAL_PROGRESS;
    return create(&slow, capturer);
}
