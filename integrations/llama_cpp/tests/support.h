/* What the programs of this folder need beside the tap: to load things, to fill a batch, and to
 * give up. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <stdbool.h>

#include <llama.h>
#include <routecap.h>

/** Print a line on the error stream and exit with status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/** The function table of a libroutecap.so. */
const routecap_api *load_routecap(const char *path);

/** Start llama.cpp, with the CPU backend that it finds in $GGML_BACKEND_DIR, and load a model. */
struct llama_model *load_model(const char *path);

/** Append a token to a batch of llama_batch_init. */
void add_token(struct llama_batch *batch, llama_token token, llama_pos position,
               llama_seq_id sequence, bool logits);

#endif
