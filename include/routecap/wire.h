/*
 * routecap, chapter 8: the bytes in which servers send routing and trainers read it.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * Every engine sends routing in bytes of its own, and none of them says all that a routing is.
 * These functions make a routing of such bytes, and such bytes of a routing. What the bytes do not
 * say comes from the caller, in a hint. What they say is checked against the hint. What they cannot
 * say is named in a report, so that nothing is lost silently.
 *
 *   format     one of ROUTECAP_WIRE_*, found by name ("nrlre1") or by who writes it ("vllm")
 *   fact       something that a routing says and a format may not: ROUTECAP_WIRE_FACT_*
 *   column     one place of the layer axis of the bytes: a captured layer, or a layer of the
 *              decoder
 *
 *     routecap_wire_hint hint = {sizeof hint};               // what the model is
 *     hint.layers = 48; hint.k = 8; hint.experts = 128;
 *     hint.rows = tokens - 1;                                // the last token was never input
 *
 *     routecap_wire_report report = {sizeof report};
 *     routecap_wire_find("sglang", &format);
 *     status = routecap_wire_decode(text, bytes, format, &hint, &report, &routing);
 *     if (status == ROUTECAP_INCOMPLETE) ...                 // how many cells, of which kind
 *
 * A cell of the bytes is valid if it has k distinct ids of its layer. Any other becomes a missing
 * cell of the routing, whatever the bytes claim:
 *
 *   in the bytes                          reason in the routing          counted in the report
 *   an id below 0                         UNWRITTEN                      cells_negative
 *   k zeros, where k is 2 or more         UNWRITTEN                      cells_zero
 *   an id of `experts` or more            OUT_OF_RANGE                   cells_out_of_range
 *   one id twice                          DUPLICATE                      cells_duplicate
 *   a row all of whose cells are          ABSENT for all its cells       also rows_zero, if zeros
 *     of the first two kinds
 *
 * Rows that are valid and still look made up stay, and are counted: rows_repeated, rows_counting.
 *
 * Threads. All functions may be called by any thread. One decoder is used by one thread at a time.
 * No function waits.
 *
 * Memory. Decoding takes memory for the bytes that are really there, never for what they claim.
 * hint.budget_bytes bounds it further.
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
#define ROUTECAP_WIRE_ANY 0        /* decoding only: whatever routecap_wire_probe finds, if it is
                                      certain. 512 blanks at the beginning are of no format */
#define ROUTECAP_WIRE_SERIALIZED 1 /* "routecap": the serialised form; it says all there is */
#define ROUTECAP_WIRE_NPY 2        /* "npy": a .npy file of version 1, 2 or 3, of integers of 8 to
                                      64 bits */
#define ROUTECAP_WIRE_NPY_BASE64 3 /* "npy.base64": the same in base64 */
#define ROUTECAP_WIRE_RAW 4        /* "raw": the array alone */
#define ROUTECAP_WIRE_RAW_BASE64 5 /* "raw.base64": the same in base64 */
#define ROUTECAP_WIRE_OBJECT 6     /* "object": a JSON object with the members "data": base64;
                                      "shape": [rows, columns, k]; "start": the first position;
                                      "dtype": a name such as "uint8". In any order */
#define ROUTECAP_WIRE_NRLRE1 7     /* "nrlre1": the text nrlre1:DTYPE:ROWSxCOLUMNSxK:BASE64, where
                                      DTYPE is int8, int16 or int32 */
#define ROUTECAP_WIRE_LISTS 8      /* "lists": nested JSON lists of integers; read also within
                                      ["ndarray", {"data": lists, "dtype": name}] */

/* Dtypes of ids that only messages have, beside ROUTECAP_DTYPE_U8 to ROUTECAP_DTYPE_I64. */
#define ROUTECAP_DTYPE_I8 8
#define ROUTECAP_DTYPE_U64 9

/* Facts: what a routing says and a format may be unable to say. They may be combined. */
#define ROUTECAP_WIRE_FACT_SHAPE 1u        /* rows, columns and k */
#define ROUTECAP_WIRE_FACT_DTYPE 2u        /* the type of the ids */
#define ROUTECAP_WIRE_FACT_EXPERTS 4u      /* how many experts each layer has */
#define ROUTECAP_WIRE_FACT_LAYERS 8u       /* which layers of the decoder they are */
#define ROUTECAP_WIRE_FACT_FIRST 16u       /* the position of the first row, where it is not 0 */
#define ROUTECAP_WIRE_FACT_VALIDITY 32u    /* which cells are missing */
#define ROUTECAP_WIRE_FACT_REASONS 64u     /* and why */
#define ROUTECAP_WIRE_FACT_TAGS 128u       /* the tag of each row */
#define ROUTECAP_WIRE_FACT_ID_SPACE 256u   /* that ids are physical */
#define ROUTECAP_WIRE_FACT_PROVENANCE 512u /* that layers were recomputed */

/* A format of this library. */
typedef struct routecap_wire_description {
    uint32_t struct_size;
    int32_t format;      /* ROUTECAP_WIRE_* */
    uint32_t version;    /* the one that is written; versions up to it are read */
    uint32_t facts;      /* ROUTECAP_WIRE_FACT_*: what its bytes say. VALIDITY: by ids of -1, where
                            the dtype is signed */
    const char *name;    /* static storage, as the others */
    const char *aliases; /* who writes it, as routecap_wire_find takes it: names with a space
                            between */
    const char *ending;  /* of the names of files, with the dot; "" if there is none */
} routecap_wire_description;

/**
 * Describe a format.
 *
 * @param[in] format        ROUTECAP_WIRE_*. Formats are numbered from 1 on without gaps, so a
 *                          caller that lists them ends at the first number that is refused.
 * @param[out] description  What the format is.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (no such format).
 */
ROUTECAP_API int32_t routecap_wire_describe(int32_t format, routecap_wire_description *description);

/**
 * Find a format by its name, by one of its aliases, or by the ending of files.
 *
 * @param[in] name     "nrlre1", "vllm" or ".npy", for instance; in lower case.
 * @param[out] format  ROUTECAP_WIRE_*.
 * @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (unknown; the text lists all names).
 */
ROUTECAP_API int32_t routecap_wire_find(const char *name, int32_t *format);

/* What bytes say of themselves. */
typedef struct routecap_wire_info {
    uint32_t struct_size;
    int32_t format;    /* ROUTECAP_WIRE_* */
    uint32_t version;  /* of the format */
    int32_t certain;   /* 1: the bytes are of no other format; 0: text in base64 that may be
                          RAW_BASE64 */
    uint32_t facts;    /* ROUTECAP_WIRE_FACT_*: what the bytes that were looked at say. A field
                          below is 0 if they do not say it */
    int32_t dtype;     /* of the ids, ROUTECAP_DTYPE_* */
    uint32_t columns;  /* length of the layer axis */
    uint32_t k;        /* experts per token */
    uint64_t first;    /* position of the first row */
    uint64_t rows;     /* how many */
} routecap_wire_info;

/**
 * Say in which format bytes are, by their beginning. The rest is not checked, and no id is looked
 * at.
 *
 * RAW is never found, because any bytes could be that. In an OBJECT what follows "data" is not
 * looked at.
 *
 * @param[in] data   [bytes] the first bytes of a message, or all of them. 512 are enough to find
 *                   the format, and 512 blanks begin none.
 * @param[in] bytes  How many.
 * @param[out] info  What they say.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (no format that this library knows, or a damaged
 *         message); ROUTECAP_ERR_BUFFER_TOO_SMALL (they may begin a message, but end before it is
 *         known of which format).
 */
ROUTECAP_API int32_t routecap_wire_probe(const void *data, size_t bytes, routecap_wire_info *info);

/* ================================================================================================
 * Decoding
 * ============================================================================================== */

/* What the columns are. */
#define ROUTECAP_WIRE_COLUMNS_FOUND 0    /* as many as hint.layers: CAPTURED; more: DECODER */
#define ROUTECAP_WIRE_COLUMNS_CAPTURED 1 /* the captured layers, in order */
#define ROUTECAP_WIRE_COLUMNS_DECODER 2  /* all layers of the decoder: column c is decoder layer c,
                                            and those not in the layer map are left out */

/* Flags of routecap_wire_hint. */
#define ROUTECAP_WIRE_HINT_STRICT 1u /* a missing cell makes the call fail with
                                        ROUTECAP_ERR_INCOMPLETE */

/*
 * What a caller knows of a message. Where the bytes say it too, both must agree
 * (ROUTECAP_ERR_SHAPE_MISMATCH). A field that is 0 or NULL takes what the bytes say, and its
 * default where they do not say it.
 */
typedef struct routecap_wire_hint {
    uint32_t struct_size;
    uint32_t layers;        /* captured (MoE) layers; default: as many as there are columns.
                               Required with layer_map or layer_experts */
    uint32_t columns;       /* length of the layer axis; default `layers` */
    uint32_t k;             /* experts per token. Required where the bytes do not say it */
    uint32_t experts;       /* ids are in [0, experts). Required, unless layer_experts is set or the
                               format is SERIALIZED */
    int32_t dtype;          /* of the ids, ROUTECAP_DTYPE_*; default I32, with OBJECT U8 */
    int32_t column_kind;    /* ROUTECAP_WIRE_COLUMNS_*; default FOUND */
    int32_t id_space;       /* ROUTECAP_ID_SPACE_*; not looked at with SERIALIZED */
    uint32_t flags;         /* 0 or ROUTECAP_WIRE_HINT_STRICT */
    uint32_t reserved;      /* 0 */
    uint64_t first;         /* position of the first row; default 0 */
    uint64_t rows;          /* how many: S-1 for S tokens; default: as many as there are */
    uint64_t tag;           /* of all rows; not looked at with SERIALIZED */
    uint64_t budget_bytes;  /* the most memory that decoding may take, in bytes
                               (ROUTECAP_ERR_NO_MEMORY); default: some 8 times the message */
    const int32_t *layer_map;      /* [layers] index of each captured layer in the decoder, strictly
                                      ascending; default 0..layers-1 */
    const uint32_t *layer_experts; /* [layers] experts of each layer, where they differ; default
                                      `experts` for all */
} routecap_wire_hint;

/*
 * What a message holds, and which facts it could not carry. With SERIALIZED the only count of cells
 * is cells_valid, and no row is counted as zero, repeated or counting.
 */
typedef struct routecap_wire_report {
    uint32_t struct_size;
    int32_t format;            /* ROUTECAP_WIRE_* */
    uint32_t version;          /* of the format */
    int32_t dtype;             /* of the ids in the bytes, ROUTECAP_DTYPE_*; of LISTS I64 */
    uint32_t facts;            /* ROUTECAP_WIRE_FACT_*: what these bytes say */
    uint32_t lost;             /* ROUTECAP_WIRE_FACT_*, when encoding: what the routing said and
                                  these bytes do not. When decoding: 0 */
    uint32_t columns;          /* length of the layer axis */
    uint32_t columns_left_out; /* columns of decoder layers that are not captured */
    uint32_t columns_in_use;   /* of these: columns with a cell of k distinct ids. Such a layer may
                                  be missing in the layer map */
    uint32_t layers_empty;     /* captured layers without one valid cell, where there are rows */
    uint64_t bytes;            /* of the whole message */
    uint64_t first;            /* position of the first row */
    uint64_t rows;             /* how many */
    /* Each cell of a captured layer is in exactly one of these five counts. */
    uint64_t cells_valid;        /* k distinct ids of the layer */
    uint64_t cells_negative;     /* an id below 0 */
    uint64_t cells_zero;         /* k zeros, where k is 2 or more */
    uint64_t cells_out_of_range; /* an id that the layer does not have */
    uint64_t cells_duplicate;    /* one id twice */
    /* Rows. */
    uint64_t rows_zero;        /* every cell is zero */
    uint64_t rows_repeated;    /* all ids equal those of the row before, and a cell is valid:
                                  perhaps a copy that fills a gap */
    uint64_t rows_counting;    /* every cell is 0, 1, .. k-1: perhaps a filler */
    int64_t largest_id;        /* of valid cells; -1 if there are none */
} routecap_wire_report;

/**
 * Make a routing of bytes, from wherever they come: nothing in them is trusted.
 *
 * The ids go into the routing's memory once, one or two bytes each by the number of experts. Sizes
 * are checked before memory is taken. SERIALIZED is copied: to use it in place, see
 * routecap_routing_deserialize.
 *
 * @param[in] data      [bytes] the message. It may be freed afterwards.
 * @param[in] bytes     How many: exactly those of one message.
 * @param[in] format    ROUTECAP_WIRE_*.
 * @param[in] hint      What the bytes do not say. May be NULL for SERIALIZED.
 * @param[out] report   What the bytes were, filled on success; may be NULL.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text
 *         says what is wrong, and where); ROUTECAP_ERR_SHAPE_MISMATCH (the hint says otherwise);
 *         ROUTECAP_ERR_DTYPE (of the hint); ROUTECAP_ERR_INCOMPLETE (strict).
 */
ROUTECAP_API int32_t routecap_wire_decode(const void *data, size_t bytes, int32_t format,
                                          const routecap_wire_hint *hint,
                                          routecap_wire_report *report, routecap_routing **routing);

/**
 * Write the ids of bytes to the caller's memory without making a routing: dtype, layout, fill and
 * mask as in routecap_routing_copy_to.
 *
 * The ids pass through a few KiB that stay in the processor's cache, and are written to dst once.
 * dst has room for all rows of the message. Nothing is written behind dst_bytes and mask_bytes,
 * whatever the message says.
 *
 * If the call fails with ROUTECAP_ERR_FORMAT or ROUTECAP_ERR_INCOMPLETE, dst and mask may have been
 * written in part.
 *
 * @param[in] data        [bytes] the message.
 * @param[in] bytes       How many: exactly those of one message.
 * @param[in] format      ROUTECAP_WIRE_*. SERIALIZED is ROUTECAP_ERR_ARGUMENT.
 * @param[in] hint        What the bytes do not say.
 * @param[in] options     The dtype, layers and layout of dst.
 * @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
 *                        NULL with dst_bytes 0 asks for the size, which returns
 *                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes   Size of dst, in bytes.
 * @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
 *                        valid cell, otherwise 0; NULL: not wanted.
 * @param[in] mask_bytes  Size of mask, in bytes.
 * @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                        NULL.
 * @param[out] report     What the bytes were, filled on success; may be NULL.
 * @return As routecap_wire_decode and routecap_routing_copy_to.
 */
ROUTECAP_API int32_t routecap_wire_decode_into(const void *data, size_t bytes, int32_t format,
                                               const routecap_wire_hint *hint,
                                               const routecap_copy_options *options, void *dst,
                                               size_t dst_bytes, uint8_t *mask, size_t mask_bytes,
                                               uint64_t *needed, routecap_wire_report *report);

/* Decoding of bytes that arrive piece by piece. */
typedef struct routecap_wire_decoder routecap_wire_decoder;

/**
 * Begin to decode bytes that arrive piece by piece. What has arrived is decoded at once, into the
 * routing's memory, which grows with it.
 *
 * Two formats are kept as bytes until the end: SERIALIZED, and OBJECT, because its shape may stand
 * behind its data.
 *
 * @param[in] format    ROUTECAP_WIRE_*. With ANY the format is found when enough bytes are there.
 * @param[in] hint      What the bytes do not say. Read now, with its arrays. May be NULL for
 *                      SERIALIZED.
 * @param[out] decoder  The decoder, to be freed with routecap_wire_decoder_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE (of the hint).
 */
ROUTECAP_API int32_t routecap_wire_decoder_create(int32_t format, const routecap_wire_hint *hint,
                                                  routecap_wire_decoder **decoder);

/**
 * Take the next bytes of the message, of any number. After an error the decoder returns that error
 * to every call.
 *
 * @param[in,out] decoder  The decoder.
 * @param[in] data         [bytes] the next bytes. They may be freed afterwards.
 * @param[in] bytes        How many.
 * @return ROUTECAP_OK, whatever cells are missing; otherwise an error of routecap_wire_decode.
 */
ROUTECAP_API int32_t routecap_wire_decoder_write(routecap_wire_decoder *decoder, const void *data,
                                                 size_t bytes);

/**
 * End the message: all of it must have been written. The decoder is then used up
 * (ROUTECAP_ERR_STATE).
 *
 * @param[in,out] decoder  The decoder.
 * @param[out] report      What the bytes were, filled on success; may be NULL.
 * @param[out] routing     The routing, to be freed with routecap_routing_free; NULL on error.
 * @return As routecap_wire_decode.
 */
ROUTECAP_API int32_t routecap_wire_decoder_finish(routecap_wire_decoder *decoder,
                                                  routecap_wire_report *report,
                                                  routecap_routing **routing);

/**
 * Free a decoder, at any time.
 *
 * @param[in,out] decoder  The decoder; NULL is allowed.
 */
ROUTECAP_API void routecap_wire_decoder_free(routecap_wire_decoder *decoder);

/* ================================================================================================
 * Encoding
 * ============================================================================================== */

/* How a routing is written. */
typedef struct routecap_wire_options {
    uint32_t struct_size;
    int32_t format;      /* ROUTECAP_WIRE_*. Required */
    int32_t dtype;       /* of the ids; default: what the format's writers use for so many experts
                            (docs/wire.md). Not for LISTS and SERIALIZED */
    int32_t column_kind; /* ROUTECAP_WIRE_COLUMNS_CAPTURED (default) or _DECODER. With DECODER the
                            ids of layers that are not captured are 0 */
    uint32_t columns;    /* with DECODER: layers of the decoder; default: the last captured one and
                            those before it */
    uint32_t allow;      /* ROUTECAP_WIRE_FACT_*: what may be lost */
    int64_t fill;        /* each id of a missing cell, where the dtype is unsigned and `allow` has
                            VALIDITY: 0 or more */
} routecap_wire_options;

/**
 * Write a routing in a format.
 *
 * If the routing says what the bytes cannot say, the call fails, unless options->allow has that
 * fact. What is lost then is in report->lost. These facts can be lost: a first row that is not 0,
 * tags that are not 0, a layer map that does not follow from the columns, missing cells and their
 * reasons, physical ids, recomputed layers. The reader has to know the model's own numbers:
 * columns, k, experts and dtype.
 *
 * Where the dtype is signed the ids of missing cells are -1. Equal routings and options give equal
 * bytes.
 *
 * @param[in] routing    The routing.
 * @param[in] options    The format, and how it is written.
 * @param[out] dst       [dst_bytes] the message. NULL with dst_bytes 0 asks for the size, which
 *                       returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes.
 * @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                       NULL.
 * @param[out] report    What was written, filled on success. Of the counts of cells and rows it has
 *                       only cells_valid and rows. May be NULL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_LOSSY (the text names what would be
 *         lost); ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written); ROUTECAP_ERR_DTYPE (ids, or
 *         the fill, do not fit, or the format does not have it); ROUTECAP_ERR_SHAPE_MISMATCH (the
 *         decoder has fewer layers than the layer map).
 */
ROUTECAP_API int32_t routecap_wire_encode(const routecap_routing *routing,
                                          const routecap_wire_options *options, void *dst,
                                          size_t dst_bytes, uint64_t *needed,
                                          routecap_wire_report *report);

/* ================================================================================================
 * Splicing
 * ============================================================================================== */

/**
 * Join two messages of one sequence: the rows of `head` before position `row`, and the rows of
 * `tail` from it on. They may be the answers of a prefill and of a decode server, for instance. No
 * id is looked at. Text in base64 is copied where its groups line up, and otherwise encoded anew.
 *
 * Both must have the same format, dtype, columns and k. The result begins with head's first row or
 * at `row`, whichever comes first, and ends with tail's last row. A position in between that is in
 * neither message is ROUTECAP_ERR_OUT_OF_RANGE. With SERIALIZED such rows are missing instead.
 *
 * @param[in] format      ROUTECAP_WIRE_*, except ANY.
 * @param[in] head        [head_bytes] the first message.
 * @param[in] head_bytes  How many: exactly those of one message.
 * @param[in] head_hint   What head's bytes do not say of columns (or layers), k, dtype and first.
 *                        No other field is looked at. May be NULL if the bytes say columns, k and
 *                        dtype, and either say first or begin at 0.
 * @param[in] tail        [tail_bytes] the second message.
 * @param[in] tail_bytes  How many: exactly those of one message.
 * @param[in] tail_hint   The same of tail's bytes.
 * @param[in] row         The position at which `tail` takes over; at most ROUTECAP_MAX_POSITION.
 * @param[out] dst        [dst_bytes] the joined message; it must not overlap head or tail. NULL
 *                        with dst_bytes 0 asks for the size, which returns
 *                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes   Size of dst, in bytes.
 * @param[out] needed     How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                        NULL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_OUT_OF_RANGE;
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 */
ROUTECAP_API int32_t routecap_wire_splice(int32_t format, const void *head, size_t head_bytes,
                                          const routecap_wire_hint *head_hint, const void *tail,
                                          size_t tail_bytes, const routecap_wire_hint *tail_hint,
                                          uint64_t row, void *dst, size_t dst_bytes,
                                          uint64_t *needed);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_WIRE_H */
