/*
 * routecap, chapter 7: routings as bytes. To store or send a routing, serialise it here.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A routing can be written as bytes for a file, shared memory or a network, and any process can
 * make a routing from these bytes. docs/format.md describes the bytes. File names end in
 * ".routecap".
 *
 *   routecap_routing_serialize     write a routing as bytes
 *   routecap_routing_deserialize   make a routing from such bytes
 *   routecap_routing_import        make a routing from arrays of any origin
 *   routecap_serialized_info       read the size and shape from the first bytes
 *   routecap_serialized_splice     join two without reading an id
 *   routecap_serialized_slice      find the bytes that hold some of the rows
 *
 *     uint64_t bytes;                                         // how many there are to be
 *     routecap_routing_serialize(routing, NULL, 0, &bytes);   // BUFFER_TOO_SMALL
 *     void *data = malloc(bytes);
 *     routecap_routing_serialize(routing, data, bytes, NULL);
 *     ... in another process:
 *     routecap_routing_deserialize(data, bytes, 0, NULL, NULL, &routing);
 *
 * None of these functions needs a capturer or a device.
 */
#ifndef ROUTECAP_SERIALIZED_H
#define ROUTECAP_SERIALIZED_H

#include "routing.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Write a routing in the serialised form.
 *
 * Routings whose views show the same contents give equal bytes. The bytes contain checksums
 * (CRC32C, 4 bytes each), one of the header, and one of each row and its position. So
 * deserialising them, or a slice of them, finds bytes that a disk or a network changed, and rows
 * that were read from a wrong place.
 *
 * @param[in] routing    The routing.
 * @param[out] dst       [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, and the
 *                       call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes.
 * @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                       NULL.
 * @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_serialize(const routecap_routing *routing, void *dst, size_t dst_bytes,
                           uint64_t *needed);

/*
 * Called once, when the library no longer uses memory that a caller lent to it. `context` is the
 * pointer that was passed to the call that lent the memory.
 *
 * The callback may run on any thread, even before the call that lent the memory returns, and inside
 * calls that free rows (close, free, truncate, destroy). The library holds no lock meanwhile, so
 * the callback may take a lock that other threads hold while they call routecap. It must not call
 * routecap itself.
 */
typedef void (*routecap_release)(void *context);

/* Flag of routecap_routing_deserialize and routecap_routing_import. */
#define ROUTECAP_IMPORT_TRUSTED 1u /* the ids are known to be valid: check everything but these */
typedef uint32_t routecap_import_flags; /* @any_of(ROUTECAP_IMPORT_*) */

/**
 * Make a routing from bytes in the serialised form.
 *
 * Nothing in the bytes is trusted. It is an error if a cell that is marked valid is not a valid
 * cell of its layer, if weights that are marked as there contain a NaN, or if a checksum does not
 * match.
 *
 * The routing takes about as much memory as the bytes, or up to twenty times as much if
 * neighbouring rows often differ in their tags, or if single rows are often missing. This memory
 * counts in no budget.
 *
 * @param[in] data      [bytes] the bytes. Without `release` they are copied. With `release` they
 *                      are lent: the routing, and every routing that shares rows with it, reads
 *                      them in place and never writes to them. They are checked only once, so no
 *                      process may change them until they are released. If a process might, copy
 *                      them first. Bytes whose address is not a multiple of 16 are copied and
 *                      released at once.
 * @param[in] bytes     How many: exactly those of one routing.
 * @param[in] flags     0 or ROUTECAP_IMPORT_TRUSTED.
 * @param[in] release   Called when the library no longer uses the bytes; not called if this call
 *                      fails. NULL: the bytes are copied.
 * @param[in] context   Passed to release.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text
 *         says what is wrong).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_deserialize(const void *data, size_t bytes, routecap_import_flags flags,
                             routecap_release release, void *context, routecap_routing **routing);

/**
 * Make a routing from arrays of any origin: the inverse of routecap_routing_view. Use it for rows
 * of a different process, file format or engine.
 *
 *   routecap_segment segment = {.first = 0, .rows = ROWS, .ids = ids};   // all cells are valid
 *   routecap_view view = {.struct_size = sizeof view, .dtype = ROUTECAP_DTYPE_U8,
 *                         .layers = LAYERS, .k = K, .experts = EXPERTS, .rows = ROWS,
 *                         .segments = &segment, .segment_size = sizeof segment,
 *                         .segment_count = 1};                // ids: uint8_t [rows, layers, k]
 *   routecap_routing_import(&view, 0, NULL, NULL, &routing);
 *
 * The rows are checked as in routecap_routing_deserialize. In a cell that is not valid, the first
 * id is the reason, and the others are ignored. If the first id is none of ROUTECAP_MISSING_*, the
 * reason is UNWRITTEN. Rows of a segment without ids are missing, and the segment's `reason` says
 * why; 0 means ABSENT.
 *
 * @param[in] view      The arrays. `dtype` is not free: it must be the one that routecap_view names
 *                      for this shape. `first` and `rows` must enclose all segments. `experts` is
 *                      used only without layer_experts, and `complete` is ignored. validity_bytes
 *                      must be (layers + 7) / 8; 0 means that number. Arrays of layers that are
 *                      NULL have the defaults of routecap_config. weights_dtype 0 means that there
 *                      are no weights. A segment with `weights` and without weights_validity has
 *                      the weights of all its valid cells. row_stride 0 means that the rows of each
 *                      array (ids, validity, weights, their validity) follow one another without a
 *                      gap. Segments must be in order of position, and segment_size is
 *                      sizeof(routecap_segment) of the caller. Rows in no segment are ABSENT.
 * @param[in] flags     0 or ROUTECAP_IMPORT_TRUSTED.
 * @param[in] release   NULL, the usual case: all arrays are copied. Otherwise the arrays that
 *                      segments point to are lent, as in routecap_routing_deserialize, if all rows
 *                      lie as the library lays them out; rows that lie differently are copied, and
 *                      released at once. The layout is: the ids of a row, then its validity, which
 *                      must be given. With weights, then their validity, which must be given too,
 *                      and the weights, from the next multiple of their size on. All other bytes up
 *                      to row_stride are 0, also in the last row. The alignment is the largest
 *                      power of two that divides the bytes of a cell's ids, at most 16, but at
 *                      least the size of a weight. row_stride is the bytes of all that, rounded up
 *                      to the alignment, and the ids of the first row are aligned to it.
 * @param[in] context   Passed to release.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_ARGUMENT (limits,
 *         order, alignment or segments); ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_SHAPE_MISMATCH
 *         (row_stride is too small for such rows, or no multiple of the size of an id and of a
 *         weight); ROUTECAP_ERR_FORMAT (a cell that is marked valid is not, or a weight is NaN).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_routing_import(const routecap_view *view, routecap_import_flags flags,
                        routecap_release release, void *context, routecap_routing **routing);

/* ================================================================================================
 * Working on the bytes
 * ============================================================================================== */

#define ROUTECAP_SERIALIZED_MIN 88 /* @number: size of the fixed part of the header, in bytes; it
                                      comes first */

/* What the first ROUTECAP_SERIALIZED_MIN bytes of a serialised routing say. */
typedef struct routecap_serialized {
    uint32_t struct_size;
    uint32_t version;           /* of the serialised form: 1 */
    uint64_t bytes;             /* of the whole routing, header included */
    uint64_t header_bytes;      /* of the header with its tables and the checksums of all rows:
                                   all that splice and slice read. The rows follow it */
    uint64_t first;             /* position of the first row */
    uint64_t rows;              /* how many */
    uint32_t layers;            /* captured layers of the routing */
    uint32_t k;                 /* columns of a cell, as in routecap_view */
    routecap_dtype dtype;       /* of the ids, ROUTECAP_DTYPE_* */
    routecap_id_space id_space; /* ROUTECAP_ID_SPACE_* */
    routecap_dtype weights_dtype; /* of the weights, ROUTECAP_DTYPE_*; 0: none */
    uint32_t reserved;            /* 0 */
} routecap_serialized;

/**
 * Read the fixed part of a serialised routing's header: its shape, and how many bytes it has in
 * all.
 *
 * The header may lie. Check header_bytes and bytes against a limit of your own before you allocate
 * memory for them.
 *
 * @param[in] data   [bytes] the first bytes of a serialised routing.
 * @param[in] bytes  How many: ROUTECAP_SERIALIZED_MIN or more.
 * @param[out] info  What they say.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_BUFFER_TOO_SMALL (too few bytes; they may
 *         be the beginning of a serialised routing).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_serialized_info(const void *data, size_t bytes, routecap_serialized *info);

/* Sources of the bytes of a routing that splice or slice makes. */
#define ROUTECAP_PIECE_HEADER 0 /* the new header */
#define ROUTECAP_PIECE_HEAD 1   /* the first of the two routings; from slice: the routing */
#define ROUTECAP_PIECE_TAIL 2   /* the second */
typedef int32_t routecap_piece_source; /* @one_of(ROUTECAP_PIECE_*) */

/* Bytes of such a routing that are contiguous in one source. */
typedef struct routecap_piece {
    uint64_t offset;              /* in its source, in bytes */
    uint64_t bytes;               /* how many */
    routecap_piece_source source; /* ROUTECAP_PIECE_* */
    uint32_t reserved;            /* 0 */
} routecap_piece;

#define ROUTECAP_MAX_PIECES 3 /* @number: the header, and the rows of each routing */

/*
 * Sizes of a serialised routing that is returned as a list of pieces. Write the pieces one after
 * another, for instance with writev, to get the routing. The first piece is the new header.
 */
typedef struct routecap_splice {
    uint32_t struct_size;
    uint32_t pieces;       /* how many */
    uint64_t bytes;        /* of the whole routing, header included */
    uint64_t header_bytes; /* of the new header */
} routecap_splice;

/**
 * Join two serialised routings of one sequence: the rows of `head` before position `row`, and the
 * rows of `tail` from `row` on. They may come from prefill and decode on different machines, or
 * from an answer that arrives in parts. Only the headers are read. No tokens are compared: for the
 * turns of a conversation, whose prompts may change, use a sequence.
 *
 * For example, head has rows 0..99, tail has rows 90..199, and `row` is 95: the result has rows
 * 0..94 of head and 95..199 of tail. If head begins at or after `row`, the result begins with row
 * `row`. If tail ends before `row`, the result ends with row `row` - 1. Rows in between that
 * neither has are missing. A layer that is RECOMPUTED in either routing is RECOMPUTED in the
 * result.
 *
 * Both headers are checked. The rows are not; they are checked when the result is deserialised.
 *
 * @param[in] head            [head_bytes] the first routing, at least its header.
 * @param[in] head_bytes      How many: header_bytes of routecap_serialized_info or more.
 * @param[in] tail            [tail_bytes] the second routing, at least its header.
 * @param[in] tail_bytes      How many: header_bytes of routecap_serialized_info or more.
 * @param[in] row             The position at which `tail` takes over.
 * @param[out] header         [capacity] the new header. NULL with capacity 0 asks for the sizes,
 *                            and the call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] capacity        Size of header, in bytes: splice->header_bytes or more. The sum of
 *                            both headers and 128 is always enough.
 * @param[out] pieces         [piece_capacity] elements of piece_size bytes: where the bytes come
 *                            from, in order; may be NULL if piece_capacity is 0.
 * @param[in] piece_size      sizeof(routecap_piece) of the caller, in bytes.
 * @param[in] piece_capacity  Elements of pieces: splice->pieces or more. ROUTECAP_MAX_PIECES is
 *                            always enough.
 * @param[out] splice         The sizes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, the
 *         weights_dtype, or the layers with their experts and numbers of experts per token differ);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes,
                           uint64_t row, void *header, size_t capacity, routecap_piece *pieces,
                           size_t piece_size, size_t piece_capacity, routecap_splice *splice);

/**
 * Extract rows of a serialised routing: make a new header, and list the bytes of the routing to be
 * written after it. Only the header is read. So if the routing is in a file or on a different
 * machine, you need to read only its header and the listed bytes: read ROUTECAP_SERIALIZED_MIN
 * bytes, then the whole header (header_bytes of routecap_serialized_info), call slice, write its
 * pieces, and deserialise the result.
 *
 * Positions stay the same. The header is checked. The rows are not; they are checked when the
 * result is deserialised, each by its own checksum.
 *
 * @param[in] data            [bytes] the routing, at least its header.
 * @param[in] bytes           How many: header_bytes of routecap_serialized_info or more.
 * @param[in] first           Position of the first row.
 * @param[in] rows            How many; ROUTECAP_ROWS_ALL: up to the end.
 * @param[out] header         [capacity] the new header. NULL with capacity 0 asks for the sizes,
 *                            and the call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] capacity        Size of header, in bytes: slice->header_bytes or more. The size of the
 *                            routing's own header is always enough.
 * @param[out] pieces         [piece_capacity] elements of piece_size bytes: where the bytes come
 *                            from, in order: the header, then the rows of the routing
 *                            (ROUTECAP_PIECE_HEAD); may be NULL if piece_capacity is 0.
 * @param[in] piece_size      sizeof(routecap_piece) of the caller, in bytes.
 * @param[in] piece_capacity  Elements of pieces: slice->pieces or more. ROUTECAP_MAX_PIECES is
 *                            always enough.
 * @param[out] slice          The sizes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_OUT_OF_RANGE (the routing lacks some of
 *         these rows: keep within `first` and `rows` of routecap_serialized);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
 * @thread(any)
 */
ROUTECAP_API ROUTECAP_NODISCARD routecap_status
routecap_serialized_slice(const void *data, size_t bytes, uint64_t first, uint64_t rows,
                          void *header, size_t capacity, routecap_piece *pieces, size_t piece_size,
                          size_t piece_capacity, routecap_splice *slice);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_SERIALIZED_H */
