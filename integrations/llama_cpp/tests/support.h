/* What the programs for llama.cpp need beside the tap: to load things, to fill a batch, to write
 * files, and to give up. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include <llama.h>
#include <routecap.h>

#include "tap.h"

/** Print a line on the error stream and exit with status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/** The tap of a program that has one. */
extern struct tap tap;

/** A status of the tap's library, unless it is an error: the program ends with its text. */
int32_t check(int32_t status, const char *what);

/** A call of the tap is done, or the program ends with the tap's text. */
void must(bool done);

/** The function table of a libroutecap.so. */
const routecap_api *load_routecap(const char *path);

/** Start llama.cpp, with the CPU backend that it finds in $GGML_BACKEND_DIR, and load a model. */
struct llama_model *load_model(const char *path);

/** Append a token to a batch of llama_batch_init. */
void add_token(struct llama_batch *batch, llama_token token, llama_pos position,
               llama_seq_id sequence, bool logits);

/** The likeliest token by the logits of a row. */
llama_token best_token(const float *logits, int tokens);

/** Bytes of malloc. */
struct bytes {
    unsigned char *data;
    uint64_t count;
};

/** A routing in the serialised form. */
struct bytes serialized(const routecap_routing *routing);

void write_file(const char *path, struct bytes bytes);

#endif
