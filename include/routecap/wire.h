/*
 * routecap, chapter 8: wire formats. To read the routing in a server's answer, decode it here.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Every engine sends routing in a format of its own, and none of these formats carries everything
 * that a routing holds. These functions decode such formats into routings, and encode routings in
 * them. When decoding, the caller supplies in a hint what the format does not carry; what it does
 * carry is checked against the hint. When encoding, the library names what would be lost, so that
 * nothing is lost silently.
 *
 *     routecap_wire_hint hint = {sizeof hint};               // what the model is
 *     hint.layers = 48; hint.k = 8; hint.experts = 128;
 *     hint.rows = tokens - 1;                                // if that many must be there
 *
 *     routecap_wire_report report = {sizeof report};
 *     routecap_wire_find("sglang", &format);
 *     status = routecap_wire_decode(text, bytes, format, &hint, &report, &routing);
 *     if (status == ROUTECAP_INCOMPLETE) ...                 // how many cells, of which kind
 *
 * ------------------------------------------------------------------------------------------------
 * In detail
 * ------------------------------------------------------------------------------------------------
 *   format     one of ROUTECAP_WIRE_*, found by its name ("nrlre1") or by a program that writes it
 *              ("vllm")
 *   fact       something that a routing states and a format may be unable to state:
 *              ROUTECAP_WIRE_FACT_*
 *   column     one index of the message's layer axis: it stands for a captured layer, or for any
 *              layer of the model's decoder
 *
 * A cell of a message is valid if it holds k distinct ids of its layer. Cells with fewer experts,
 * several visits of a layer, and weights are decoded only from SERIALIZED; see routecap_wire_encode
 * for how they are encoded. In all other formats, every other cell becomes a missing cell of the
 * routing:
 *
 *   in the bytes                          reason in the routing          counted in the report
 *   an id below 0                         UNWRITTEN                      cells_negative
 *   k zeros, where k is 2 or more         UNWRITTEN                      cells_zero
 *   an id of `experts` or more            OUT_OF_RANGE                   cells_out_of_range
 *   the same id twice                     DUPLICATE                      cells_duplicate
 *
 * The first line that fits a cell counts. If every cell of a row fits one of the first two lines,
 * the whole row is ABSENT; if every cell is k zeros, it is also counted in rows_zero. Valid rows
 * that look like filler are kept, and counted in rows_repeated and rows_counting.
 *
 * Threads. Any thread may call any function, but only one thread at a time may use a decoder. No
 * function waits.
 *
 * Memory. Decoding allocates memory in proportion to the bytes received, never to sizes that a
 * message merely claims. hint.budget_bytes limits it further.
 *
 * Recipes:
 *   - The answer of an engine whose format you do not know: decode with ROUTECAP_WIRE_ANY. RAW and
 *     some base64 texts are ambiguous, so name the format if you can.
 *   - Prefill and decode on different servers: decode both answers, with hint.first if the second
 *     does not begin at 0. Take each row from the server that computed it, with
 *     routecap_routing_slice; join the slices with routecap_routing_merge, and encode the result.
 *   - An answer that arrives in pieces: routecap_wire_decoder_create, _write and _finish.
 *   - An aborted request: S tokens have S-1 rows. If S is 2 or more, set hint.rows to S-1, so that
 *     a message with a different number of rows is refused. Do not set it for a server that sends a
 *     row for the last token too: routecap_sequence_append ignores that row.
 *
 * None of these functions needs a capturer or a device.
 */
#ifndef ROUTECAP_WIRE_H
#define ROUTECAP_WIRE_H

#include "routing.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Formats
 * ============================================================================================== */

/*
 * Numbers are little endian. Arrays are [rows, columns, k] in C order. base64 is that of RFC 4648
 * with padding and without line breaks.
 */
#define ROUTECAP_WIRE_ANY 0        /* decoding only: the format that the first bytes show. A message
                                      that begins with 512 blanks is refused */
#define ROUTECAP_WIRE_SERIALIZED 1 /* @names(routecap, .routecap): the serialised form, which
                                      carries every fact */
#define ROUTECAP_WIRE_NPY 2        /* @names(npy, .npy): a .npy file, version 1, 2 or 3, with
                                      integers of 8 to 64 bits */
#define ROUTECAP_WIRE_NPY_BASE64 3 /* @names(npy.base64, vllm, .npy.b64): a .npy file in base64 */
#define ROUTECAP_WIRE_RAW 4        /* @names(raw): the array alone */
#define ROUTECAP_WIRE_RAW_BASE64 5 /* @names(raw.base64, sglang, .b64): the array alone, in
                                      base64 */
#define ROUTECAP_WIRE_OBJECT 6     /* @names(object, dynamo, prime-rl, verifiers, .routes.json): a
                                      JSON object with these members in any order: "data": base64;
                                      "shape": [rows, columns, k]; "start": the first position;
                                      "dtype": a name such as "uint8" */
#define ROUTECAP_WIRE_NRLRE1 7     /* @names(nrlre1, nemo-rl, .nrlre1): the text
                                      nrlre1:DTYPE:ROWSxCOLUMNSxK:BASE64, where DTYPE is int8, int16
                                      or int32 */
#define ROUTECAP_WIRE_LISTS 8      /* @names(lists, megatron, .lists.json): nested JSON lists of
                                      integers; read also within ["ndarray", {"data": lists,
                                      "dtype": name}] */
typedef int32_t routecap_wire_format; /* @one_of(ROUTECAP_WIRE_*) */

/* Dtypes of ids that occur only in messages, besides ROUTECAP_DTYPE_U8 to ROUTECAP_DTYPE_I64. */
#define ROUTECAP_DTYPE_I8 8  /* @bytes(1) */
#define ROUTECAP_DTYPE_U64 9 /* @bytes(8) */

/* Facts: what a routing states and a format may be unable to state. Combine them with |. */
#define ROUTECAP_WIRE_FACT_SHAPE 1u        /* rows, columns and k */
#define ROUTECAP_WIRE_FACT_DTYPE 2u        /* the type of the ids */
#define ROUTECAP_WIRE_FACT_EXPERTS 4u      /* how many experts each layer has */
#define ROUTECAP_WIRE_FACT_LAYERS 8u       /* which decoder layers the captured layers are */
#define ROUTECAP_WIRE_FACT_FIRST 16u       /* the position of the first row, if it is not 0 */
#define ROUTECAP_WIRE_FACT_VALIDITY 32u    /* which cells are missing */
#define ROUTECAP_WIRE_FACT_REASONS 64u     /* why they are missing */
#define ROUTECAP_WIRE_FACT_TAGS 128u       /* the tag of each row */
#define ROUTECAP_WIRE_FACT_ID_SPACE 256u   /* that ids are physical */
#define ROUTECAP_WIRE_FACT_PROVENANCE 512u /* that layers were recomputed */
#define ROUTECAP_WIRE_FACT_WEIGHTS 1024u   /* the weights beside the ids */
typedef uint32_t routecap_wire_facts; /* @any_of(ROUTECAP_WIRE_FACT_*) */

/* Description of a format. */
typedef struct routecap_wire_description {
    uint32_t struct_size;
    routecap_wire_format format; /* ROUTECAP_WIRE_* */
    uint32_t version;            /* the version that is written; this and all earlier versions can
                                    be read */
    routecap_wire_facts facts;   /* ROUTECAP_WIRE_FACT_* that the format carries. If VALIDITY is
                                    carried by ids of -1, only a signed dtype carries it */
    const char *name;            /* static storage, like aliases and ending */
    const char *aliases;         /* programs that write it, separated by spaces: names that
                                    routecap_wire_find accepts */
    const char *ending;          /* ending of file names, with the dot; "" if there is none */
} routecap_wire_description;

/**
 * Describe a format.
 *
 * @param[in] format        ROUTECAP_WIRE_*. To list all formats, count up from 1 until the call
 *                          returns ROUTECAP_ERR_ARGUMENT: the numbers have no gaps.
 * @param[out] description  What the format is.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (no such format).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_describe(routecap_wire_format format, routecap_wire_description *description);

/**
 * Find a format by its name, by one of its aliases, or by its file ending.
 *
 * @param[in] name     Such as "nrlre1", "vllm" or ".npy"; in lower case.
 * @param[out] format  ROUTECAP_WIRE_*.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (unknown; the text lists all names).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_find(const char *name, routecap_wire_format *format);

/* ================================================================================================
 * Decoding
 * ============================================================================================== */

/* Which layers the columns of a message are. */
#define ROUTECAP_WIRE_COLUMNS_FOUND 0    /* decided by the number of columns: if it is hint.layers,
                                            they are CAPTURED; if it is larger, DECODER */
#define ROUTECAP_WIRE_COLUMNS_CAPTURED 1 /* the captured layers, in order */
#define ROUTECAP_WIRE_COLUMNS_DECODER 2  /* all layers of the decoder: column c is decoder layer c.
                                            Columns that are not in the layer map are left out */
typedef int32_t routecap_wire_columns; /* @one_of(ROUTECAP_WIRE_COLUMNS_*) */

/* Flags of routecap_wire_hint. */
#define ROUTECAP_WIRE_HINT_STRICT 1u /* a missing cell makes the call fail with
                                        ROUTECAP_ERR_INCOMPLETE */
typedef uint32_t routecap_wire_hint_flags; /* @any_of(ROUTECAP_WIRE_HINT_*) */

/*
 * What the caller knows about a message. If the bytes say it too, both must agree; otherwise
 * decoding fails with ROUTECAP_ERR_SHAPE_MISMATCH. A field that is 0 or NULL is taken from the
 * bytes, or has its default if they do not say it.
 */
typedef struct routecap_wire_hint {
    uint32_t struct_size;
    uint32_t layers;                   /* captured (MoE) layers; default: the number of columns.
                                          Required with layer_map or layer_experts, and if nothing
                                          else says the number of columns */
    uint32_t columns;                  /* length of the layer axis; default: what the bytes say,
                                          else `layers` */
    uint32_t k;                        /* experts per token. Required if the bytes do not say it */
    uint32_t experts;                  /* ids are in [0, experts). Required, unless layer_experts is
                                          set or the format is SERIALIZED */
    routecap_dtype dtype;              /* of the ids, ROUTECAP_DTYPE_*; default I32, with OBJECT
                                          U8 */
    routecap_wire_columns column_kind; /* ROUTECAP_WIRE_COLUMNS_*; default FOUND */
    routecap_id_space id_space;        /* ROUTECAP_ID_SPACE_*; ignored with SERIALIZED */
    routecap_wire_hint_flags flags;    /* 0 or ROUTECAP_WIRE_HINT_STRICT */
    uint32_t reserved;                 /* 0 */
    uint64_t first;                    /* position of the first row; default 0 */
    uint64_t rows;                     /* number of rows of this message: S - 1 - first, where S
                                          is the number of tokens from token 0 to the message's end.
                                          Default 0: as many as it has */
    uint64_t tag;                      /* tag of all rows; ignored with SERIALIZED */
    uint64_t budget_bytes;             /* the most memory that decoding may take, in bytes; beyond
                                          it, ROUTECAP_ERR_NO_MEMORY. Default: about 8 times the
                                          message */
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder, strictly
                                      ascending; default 0..layers-1. With CAPTURED columns it names
                                      them; with DECODER columns it selects them */
    const uint32_t *layer_experts; /* [layers] number of experts of each layer, if they differ;
                                      default `experts` for all */
} routecap_wire_hint;

/*
 * What a message holds, and which facts it lacks. With SERIALIZED, cells_valid is the only count of
 * cells, and rows_zero, rows_repeated and rows_counting are 0.
 */
typedef struct routecap_wire_report {
    uint32_t struct_size;
    routecap_wire_format format; /* ROUTECAP_WIRE_* */
    uint32_t version;            /* of the format */
    routecap_dtype dtype;        /* of the ids in the message, ROUTECAP_DTYPE_*; I64 for LISTS */
    routecap_wire_facts facts;   /* ROUTECAP_WIRE_FACT_* that this message carries */
    routecap_wire_facts lost;    /* when encoding: the ROUTECAP_WIRE_FACT_* that were lost; see
                                    routecap_wire_encode. When decoding: 0 */
    uint32_t columns;            /* length of the layer axis */
    uint32_t columns_left_out;   /* columns that were left out, because they are not in the layer
                                    map */
    uint32_t columns_in_use;     /* columns that were left out although they hold a cell of k
                                    distinct ids: perhaps the layer map lacks their layer */
    uint32_t layers_empty;       /* captured layers without a single valid cell; 0 if there are no
                                    rows */
    uint64_t bytes;              /* of the whole message */
    uint64_t first;              /* position of the first row */
    uint64_t rows;               /* how many */
    /* Each cell of a captured layer is in exactly one of these five counts: cells_valid, or the
     * first of the others that fits. */
    uint64_t cells_valid;        /* k distinct ids of the layer */
    uint64_t cells_negative;     /* an id below 0 */
    uint64_t cells_zero;         /* k zeros, where k is 2 or more */
    uint64_t cells_out_of_range; /* an id that the layer does not have */
    uint64_t cells_duplicate;    /* the same id twice */
    /* Rows. */
    uint64_t rows_zero;        /* every cell is zero */
    uint64_t rows_repeated;    /* at least one cell is valid, and all ids equal those of the row
                                  before: perhaps a copy that fills a gap */
    uint64_t rows_counting;    /* every cell is 0, 1, ..., k-1: perhaps filler */
    int64_t largest_id;        /* largest id in a valid cell; -1 if there is none */
} routecap_wire_report;

/**
 * Decode a message into a routing. Nothing in the message is trusted.
 *
 * Each id is written to the routing's memory once, as one or two bytes, depending on the number of
 * experts. Sizes are checked before memory is allocated. A SERIALIZED message is copied; to use it
 * in place, see routecap_routing_deserialize.
 *
 * @param[in] data      [bytes] the message. It may be freed afterwards.
 * @param[in] bytes     How many: exactly those of one message.
 * @param[in] format    ROUTECAP_WIRE_*.
 * @param[in] hint      What the bytes do not say. May be NULL for SERIALIZED.
 * @param[out] report   What the message held, filled on success; may be NULL.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text
 *         says what is wrong, and where); ROUTECAP_ERR_SHAPE_MISMATCH (the message contradicts the
 *         hint); ROUTECAP_ERR_DTYPE (the hint's dtype); ROUTECAP_ERR_INCOMPLETE (strict, and cells
 *         are missing).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_decode(const void *data, size_t bytes, routecap_wire_format format,
                     const routecap_wire_hint *hint, routecap_wire_report *report,
                     routecap_routing **routing);

/* Decoding of bytes that arrive piece by piece. */
typedef struct routecap_wire_decoder routecap_wire_decoder;

/**
 * Begin to decode a message that arrives piece by piece. The pieces are kept and decoded at the
 * end, so routecap_wire_decoder_finish finds what is wrong with the message, and hint.budget_bytes
 * has to have room for the message and its rows.
 *
 * @param[in] format    ROUTECAP_WIRE_*. With ANY, the format is found at the end.
 * @param[in] hint      What the bytes do not say. The call reads it and its arrays before it
 *                      returns. May be NULL for SERIALIZED.
 * @param[out] decoder  The decoder, to be freed with routecap_wire_decoder_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE (the hint's dtype).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_decoder_create(routecap_wire_format format, const routecap_wire_hint *hint,
                             routecap_wire_decoder **decoder);

/**
 * Give the decoder the next bytes of the message, however many. After an error, every later call
 * returns the same error.
 *
 * @param[in,out] decoder  The decoder.
 * @param[in] data         [bytes] the next bytes. They may be freed afterwards.
 * @param[in] bytes        How many.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NO_MEMORY (also hint.budget_bytes).
 * @thread(decoder)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_decoder_write(routecap_wire_decoder *decoder, const void *data, size_t bytes);

/**
 * End the message, after all of it was written. The decoder cannot be used again: further calls
 * return ROUTECAP_ERR_STATE if this one succeeded, and otherwise the same error.
 *
 * @param[in,out] decoder  The decoder.
 * @param[out] report      What the message held, filled on success; may be NULL.
 * @param[out] routing     The routing, to be freed with routecap_routing_free; NULL on error.
 * @return As routecap_wire_decode.
 * @thread(decoder)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_decoder_finish(routecap_wire_decoder *decoder, routecap_wire_report *report,
                             routecap_routing **routing);

/**
 * Free a decoder. This is allowed at any time, even before the message has ended. Free it after
 * routecap_wire_decoder_finish too.
 *
 * @param[in,out] decoder  The decoder; may be NULL.
 * @thread(decoder)
 */
ROUTECAP_API void routecap_wire_decoder_free(routecap_wire_decoder *decoder);

/* ================================================================================================
 * Encoding
 * ============================================================================================== */

/* How to write a routing. */
typedef struct routecap_wire_options {
    uint32_t struct_size;
    routecap_wire_format format;       /* ROUTECAP_WIRE_*. Required */
    routecap_dtype dtype;              /* of the ids; default: what other writers of the format use
                                          for this number of experts (docs/wire.md). Not for LISTS
                                          and SERIALIZED */
    routecap_wire_columns column_kind; /* ROUTECAP_WIRE_COLUMNS_CAPTURED (default) or _DECODER. With
                                          DECODER, layers that are not captured get ids of 0 */
    uint32_t columns;                  /* with DECODER: number of decoder layers; default: up to and
                                          including the last captured layer */
    routecap_wire_facts allow;         /* ROUTECAP_WIRE_FACT_* that may be lost */
    int64_t fill;                      /* each id of a missing cell, if the dtype is unsigned and
                                          `allow` has VALIDITY; 0 or more */
} routecap_wire_options;

/**
 * Write a routing in a format.
 *
 * If the routing states a fact that the format cannot carry, the call fails, unless options->allow
 * has that fact. The facts that are then lost are in report->lost. These can be lost: a position of
 * the first row other than 0, tags other than 0, a layer map that a reader cannot tell from the
 * columns, missing cells and their reasons, physical ids, recomputed layers, and weights. Columns,
 * k, experts and dtype never count as lost, because a reader knows them from the model.
 *
 * Two things are ROUTECAP_ERR_LOSSY whatever options->allow has: a routing whose cells may have
 * fewer than k experts, in all formats but SERIALIZED; and a layer with several visits, with
 * DECODER, where it would have one column.
 *
 * If the dtype is signed, the ids of missing cells are -1. Equal routings and options give equal
 * bytes.
 *
 * @param[in] routing    The routing.
 * @param[in] options    The format and its options.
 * @param[out] dst       [dst_bytes] the message. NULL with dst_bytes 0 asks for the size, and the
 *                       call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes.
 * @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                       NULL.
 * @param[out] report    What was written, filled on success; may be NULL. Of the counts of cells
 *                       and rows, only cells_valid and rows are set.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_LOSSY (the text names what would be
 *         lost); ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written); ROUTECAP_ERR_DTYPE (the dtype
 *         cannot hold the ids or the fill, or the format does not have it);
 *         ROUTECAP_ERR_SHAPE_MISMATCH (the layer map names a layer beyond `columns`).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_wire_encode(const routecap_routing *routing, const routecap_wire_options *options,
                     void *dst, size_t dst_bytes, uint64_t *needed, routecap_wire_report *report);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_WIRE_H */
