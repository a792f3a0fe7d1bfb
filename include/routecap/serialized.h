/*
 * routecap, chapter 7: routings as bytes, and routings from other memory.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A routing can be written as bytes, for a file, shared memory or a network, and be made again
 * from them in any process. docs/format.md describes the bytes. Files of them end in ".routecap".
 *
 *   routecap_routing_serialize     write a routing as bytes
 *   routecap_routing_deserialize   make a routing from such bytes
 *   routecap_routing_import        make a routing from arrays of any origin
 *   routecap_serialized_info       what such bytes are, and how many are still to come
 *   routecap_serialized_splice     put two together without reading an id
 *   routecap_serialized_slice      which bytes hold some of the rows
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
 * Routings with equal layer tables, first rows, cells (ids in order), reasons and tags give equal
 * bytes. Later libraries write version 1 too, unless a flag asks for another version. They refuse a
 * routing that version 1 cannot express.
 *
 * @param[in] routing    The routing.
 * @param[in] flags      0.
 * @param[out] dst       [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, which
 *                       returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] dst_bytes  Size of dst, in bytes.
 * @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
 *                       NULL.
 * @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_NOT_READY;
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 */
ROUTECAP_API int32_t routecap_routing_serialize(const routecap_routing *routing, uint32_t flags,
                                                void *dst, size_t dst_bytes, uint64_t *needed);

/*
 * Called once, when memory that was lent to the library is no longer used. context is that of the
 * call that lent it.
 *
 * It may be called on any thread, before the call that lent the memory returns, and inside calls
 * that free rows (close, free, truncate, destroy). No lock of the library is held meanwhile. So it
 * may take a lock that other threads hold while they call routecap. It must not call routecap
 * itself.
 */
typedef void (*routecap_release)(void *context);

/* Flag of routecap_routing_deserialize and routecap_routing_import. */
#define ROUTECAP_IMPORT_TRUSTED 1u /* the ids are known to be right and are not checked. Everything
                                      else is checked */

/**
 * Make a routing from bytes in the serialised form.
 *
 * Nothing in the bytes is trusted. Ids are checked as those of a step are: a cell that claims to be
 * valid and is not k distinct experts of its layer is an error.
 *
 * The routing takes about as much memory as the bytes. It takes up to twenty times as much if they
 * consist of many runs of one row. That memory counts in no budget.
 *
 * @param[in] data      [bytes] the bytes. Without `release` they are copied. With `release` they
 *                      are lent: the routing, and every routing that shares rows with it, uses them
 *                      in place and never writes them. They are checked once, so no process may
 *                      change them until they are released. Copy memory that someone may still
 *                      write. Bytes that do not begin at a multiple of 8 are copied and released at
 *                      once.
 * @param[in] bytes     How many: exactly those of one routing.
 * @param[in] flags     0 or ROUTECAP_IMPORT_TRUSTED.
 * @param[in] release   Called when the bytes are no longer used, but not if this call fails. NULL:
 *                      the bytes are copied.
 * @param[in] context   Passed to release.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text
 *         says what is wrong).
 */
ROUTECAP_API int32_t routecap_routing_deserialize(const void *data, size_t bytes, uint32_t flags,
                                                  routecap_release release, void *context,
                                                  routecap_routing **routing);

/**
 * Make a routing from arrays of any origin: the inverse of routecap_routing_view. It is for rows
 * that another process, file format or engine has.
 *
 * The rows are checked as those of routecap_routing_deserialize. In a cell that is not valid only
 * the first id is looked at: it is the reason, or the reason is UNWRITTEN if it is none of
 * ROUTECAP_MISSING_*. Rows of a segment without ids are missing for its `reason`, where 0 means
 * ABSENT.
 *
 * @param[in] view      The arrays. `experts` is used only without layer_experts, and `complete` not
 *                      at all. validity_bytes may be 0. layer_map, layer_experts and
 *                      layer_provenance may be NULL: they are then 0..layers-1, `experts` for all,
 *                      and CAPTURED for all. Segments are in order, of segment_size
 *                      sizeof(routecap_segment) of the caller. They may leave out rows that are
 *                      ABSENT.
 * @param[in] flags     0 or ROUTECAP_IMPORT_TRUSTED.
 * @param[in] release   NULL: all arrays are copied. Otherwise the arrays that segments point to are
 *                      lent, as those of routecap_routing_deserialize; the segments and the tables
 *                      of layers are copied.
 * @param[in] context   Passed to release.
 * @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_ARGUMENT (limits,
 *         order or segments); ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_FORMAT (a valid cell with an id out
 *         of range, or with one id twice).
 */
ROUTECAP_API int32_t routecap_routing_import(const routecap_view *view, uint32_t flags,
                                             routecap_release release, void *context,
                                             routecap_routing **routing);

/* ================================================================================================
 * Working on the bytes
 * ============================================================================================== */

#define ROUTECAP_SERIALIZED_MIN 64 /* bytes of the fixed part of the header, which come first */

/* What the first ROUTECAP_SERIALIZED_MIN bytes of a serialised routing say. */
typedef struct routecap_serialized {
    uint32_t struct_size;
    uint32_t version;      /* of the serialised form */
    uint64_t bytes;        /* of the whole routing, header included */
    uint64_t header_bytes; /* of the header with its tables: all that splice and slice read */
    uint64_t first;        /* position of the first row */
    uint64_t rows;         /* how many */
    uint32_t layers;       /* captured layers that it has */
    uint32_t k;            /* experts per token */
    int32_t dtype;         /* of the ids, ROUTECAP_DTYPE_* */
    int32_t id_space;      /* ROUTECAP_ID_SPACE_* */
} routecap_serialized;

/**
 * Read the fixed part of a serialised routing's header: what it is, and how many bytes a stream
 * still has to bring.
 *
 * The sender may claim anything. Bound header_bytes and bytes before you make room for them.
 *
 * @param[in] data   [bytes] the first bytes of a serialised routing.
 * @param[in] bytes  How many: ROUTECAP_SERIALIZED_MIN or more.
 * @param[out] info  What they say.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_BUFFER_TOO_SMALL (too few bytes, but those
 *         that are there may begin a serialised routing).
 */
ROUTECAP_API int32_t routecap_serialized_info(const void *data, size_t bytes,
                                              routecap_serialized *info);

/* Where bytes of a spliced routing come from. */
#define ROUTECAP_PIECE_HEADER 0 /* the new header */
#define ROUTECAP_PIECE_HEAD 1   /* the first of the two routings */
#define ROUTECAP_PIECE_TAIL 2   /* the second */
#define ROUTECAP_PIECE_ZERO 3   /* bytes of 0: padding */

/* Bytes of a spliced routing that lie next to one another in one source. */
typedef struct routecap_piece {
    uint64_t offset;   /* in its source, in bytes; 0 for ZERO */
    uint64_t bytes;    /* how many */
    int32_t source;    /* ROUTECAP_PIECE_* */
    uint32_t reserved; /* 0 */
} routecap_piece;

#define ROUTECAP_MAX_PIECES 16 /* enough for two routings in version 1 of the form */

/*
 * Sizes of a serialised routing that is given as a list of pieces. Written one after another, as by
 * writev, the pieces are the routing.
 */
typedef struct routecap_splice {
    uint32_t struct_size;
    uint32_t pieces;       /* how many */
    uint64_t bytes;        /* of the whole routing, header included */
    uint64_t header_bytes; /* of the new header */
} routecap_splice;

/**
 * Put two serialised routings of one sequence together: the rows of `head` before position `row`,
 * and the rows of `tail` from there on. They may be of prefill and decode on different machines, of
 * turns of a conversation, or parts of a stream. Only the headers are read.
 *
 * The result begins with head's first row, or at `row` if that is lower. It ends with tail's last
 * row, or before `row` if that is higher. Rows between that neither has are missing. A layer that
 * is recomputed in one is recomputed in the result.
 *
 * Both headers are checked. Ids, tags and validity are not: whoever deserialises the result checks
 * them. The pieces of each source ascend, but pieces of tail's ids come before pieces of head's
 * tags and validity. So have both sources at hand when you write the pieces.
 *
 * @param[in] head            [head_bytes] the first routing, at least its header.
 * @param[in] head_bytes      How many: header_bytes of routecap_serialized_info or more.
 * @param[in] tail            [tail_bytes] the second routing, at least its header.
 * @param[in] tail_bytes      How many: header_bytes of routecap_serialized_info or more.
 * @param[in] row             The position at which `tail` takes over.
 * @param[out] header         [capacity] the new header. NULL with capacity 0 asks for the sizes,
 *                            which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] capacity        Size of header, in bytes: splice->header_bytes or more. The sum of
 *                            both headers and 128 is always enough.
 * @param[out] pieces         [piece_capacity] elements of piece_size bytes: where the bytes come
 *                            from, in order; may be NULL if piece_capacity is 0.
 * @param[in] piece_size      sizeof(routecap_piece) of the caller, in bytes.
 * @param[in] piece_capacity  Elements of pieces: splice->pieces or more. ROUTECAP_MAX_PIECES is
 *                            always enough.
 * @param[out] splice         The sizes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, the
 *         layers or their experts differ); ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing
 *         is written to either).
 */
ROUTECAP_API int32_t routecap_serialized_splice(const void *head, size_t head_bytes,
                                                const void *tail, size_t tail_bytes, uint64_t row,
                                                void *header, size_t capacity,
                                                routecap_piece *pieces, size_t piece_size,
                                                size_t piece_capacity, routecap_splice *splice);

/**
 * Cut rows out of a serialised routing: make a new header, and say which bytes of the routing
 * follow it. Only the header is read. So of a routing in a file, or on another machine, no more is
 * read than the header and those pieces.
 *
 * Positions stay the same. The header is checked; ids, tags and validity are not: whoever
 * deserialises the result checks them.
 *
 * @param[in] data            [bytes] the routing, at least its header.
 * @param[in] bytes           How many: header_bytes of routecap_serialized_info or more.
 * @param[in] first           Position of the first row.
 * @param[in] rows            How many; ROUTECAP_ROWS_ALL: up to the end.
 * @param[out] header         [capacity] the new header. NULL with capacity 0 asks for the sizes,
 *                            which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param[in] capacity        Size of header, in bytes: slice->header_bytes or more. Those of the
 *                            routing's header are always enough.
 * @param[out] pieces         [piece_capacity] elements of piece_size bytes: where the bytes come
 *                            from, in order, with ROUTECAP_PIECE_HEAD for the routing; may be NULL
 *                            if piece_capacity is 0.
 * @param[in] piece_size      sizeof(routecap_piece) of the caller, in bytes.
 * @param[in] piece_capacity  Elements of pieces: slice->pieces or more. ROUTECAP_MAX_PIECES is
 *                            always enough.
 * @param[out] slice          The sizes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_OUT_OF_RANGE (the routing has no such
 *         rows); ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
 */
ROUTECAP_API int32_t routecap_serialized_slice(const void *data, size_t bytes, uint64_t first,
                                               uint64_t rows, void *header, size_t capacity,
                                               routecap_piece *pieces, size_t piece_size,
                                               size_t piece_capacity, routecap_splice *slice);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_SERIALIZED_H */
