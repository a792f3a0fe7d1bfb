/*
 * routecap: routings from and to other memory.
 */
#ifndef ROUTECAP_SERIALIZED_H
#define ROUTECAP_SERIALIZED_H

#include "routing.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Routings from and to other memory: the serialised form, and arrays of any origin
 *
 * The serialised form, version 1. All numbers are little endian; what is reserved, and padding, is 0. Files of it end in ".routecap".
 *
 *      offset  size  header
 *           0     8  the bytes "ROUTECAP"
 *           8     4  version: 1
 *          12     4  reserved
 *          16     8  bytes: of everything
 *          24     8  first: position of the first row
 *          32     8  rows; first + rows is at most ROUTECAP_MAX_POSITION
 *          40     8  runs
 *          48     4  layers
 *          52     4  k
 *          56     4  dtype of the ids: ROUTECAP_DTYPE_U8 if no layer has more than 256 experts, otherwise ROUTECAP_DTYPE_I16
 *          60     4  id_space
 *          64        layer table [layers] of 12 bytes: 4 index in the decoder, strictly ascending; 4 experts; 4 provenance; padded to a multiple of 8
 *                    run table [runs] of 24 bytes: 8 rows, not 0; 8 tag; 4 flags; 4 reason. Their rows add up to `rows`. Padded to a multiple of
 *                    64, where the first plane begins
 *
 * The numbers are within the limits of a configuration; a reader refuses anything else, also a reserved field or padding that is not 0, and an id
 * space or a provenance that it does not know.
 *
 * A run is a number of consecutive rows of one kind. Its flags: 1 PRESENT, the rows are in the ids
 * plane and the reason is 0, otherwise all their cells are missing, no other flag is set, the tag
 * is 0, and the reason is ROUTECAP_MISSING_* with 0 for ABSENT; 2 VALIDITY, they are in the
 * validity plane, otherwise all their cells are valid; 4 TAGS, each has its own tag in the tags
 * plane, and the run's is 0, otherwise the run's tag is that of all of them.
 *
 * Three planes follow, each of the rows of all runs that have its flag, in order, without gaps. The second and third begin at the next multiple
 * of 64, as the first does, also behind and before planes without rows; `bytes` ends with the last byte of the third:
 *
 *      ids       [PRESENT rows, layers, k] of 1 or 2 bytes. In a cell that is not valid: ROUTECAP_MISSING_*, then zeros (a reader takes anything
 *                else for UNWRITTEN)
 *      tags      [TAGS rows] of 8 bytes
 *      validity  [VALIDITY rows, (layers + 7) / 8] bytes: bit l % 8 of byte l / 8 is set if layer l is valid; bits beyond the layers are 0
 *
 * So a routing without missing rows is one array, and a range of rows is one range of each plane: what was taken from a stream or comes from two
 * machines can be put together on the headers alone, and an array in a file or in shared memory is used in place. routecap_routing_serialize
 * writes runs as long as possible, VALIDITY only for runs with a missing cell in each row, and so one form for equal routings; a splice keeps the
 * runs of its two parts, but for neighbours with the same flags, tag and reason. Readers take any.
 * ============================================================================================== */

/*
 * Called once when memory that was lent is no longer used: on any thread, perhaps before the call
 * that lent it returns, perhaps inside a call that frees rows (close, free, truncate, destroy). No
 * lock of the library is held while it runs, so it may take a lock that other threads hold while
 * they call routecap. It must not call routecap itself.
 */
typedef void (*routecap_release)(void *context);

/* Flag of routecap_routing_deserialize and routecap_routing_import. */
#define ROUTECAP_IMPORT_TRUSTED 1u /* the ids are known to be right: they are not looked at. Everything else is checked all the same */

/**
 * Write a routing in the serialised form. Routings with equal layer tables, first rows, cells (ids in order), reasons and tags give equal bytes.
 *
 * Later libraries write version 1 too, unless a flag asks them for another, and refuse a routing that version 1 has no words for.
 *
 * @param flags      0.
 * @param dst        NULL with dst_bytes 0 to ask for the size, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param dst_bytes  Size of dst.
 * @param needed     Receives the bytes that it takes; may be NULL. Set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
 * @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
 */
ROUTECAP_API int32_t routecap_routing_serialize(const routecap_routing *routing, uint32_t flags, void *dst, size_t dst_bytes,
                                                uint64_t *needed);

/**
 * Make a routing of bytes in the serialised form, from wherever they come: nothing in them is trusted. Needs no capturer.
 *
 * The memory that it takes is about `bytes`, at most twenty times that (many runs of one row), and counts in no budget. Ids are checked as
 * those of a step are: a cell that claims to be valid and is not k distinct experts of its layer is an error.
 *
 * @param data     [bytes]. With `release`, lent: the routing, and all that shares rows with it, refers to it in place, and it must not change
 *                 until it is released, in this process: it is checked once. Copy memory that someone else may still write. It is never written, so
 *                 a read-only mapping will do. If it does not begin at a multiple of 8 it is copied all the same, and released at once.
 * @param bytes    Exactly those of one routing.
 * @param flags    0 or ROUTECAP_IMPORT_TRUSTED.
 * @param release  NULL: data is copied, and the caller's again when the call returns. Not called if the call fails.
 * @param context  Passed to release.
 * @param routing  Receives the routing, to be freed with routecap_routing_free; NULL on error.
 * @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text says what is wrong).
 */
ROUTECAP_API int32_t routecap_routing_deserialize(const void *data, size_t bytes, uint32_t flags, routecap_release release, void *context,
                                                  routecap_routing **routing);

/**
 * Make a routing of arrays of any origin: the inverse of routecap_routing_view. For rows that another process, file format or engine has.
 *
 * The rows and cells of the view are checked as those of routecap_routing_deserialize. Of cells
 * that are not valid only the first id is looked at: it is their reason if it is one of
 * ROUTECAP_MISSING_*, which is otherwise UNWRITTEN. Rows without ids are missing for the segment's
 * `reason`, where 0 means ABSENT.
 *
 * @param view     `experts` and `complete` are not looked at; `validity_bytes` may be 0; layer_map, layer_experts and layer_provenance may be
 *                 NULL: 0..layers-1, `experts` (which is then needed) and CAPTURED. Segments need not hold rows that are ABSENT, but are in
 *                 order, with a segment_size of sizeof(routecap_segment) of the caller.
 * @param release  NULL: all arrays are copied. Otherwise those that segments point to are lent; tables and segments themselves are copied.
 * @return As routecap_routing_deserialize, but ROUTECAP_ERR_ARGUMENT (limits, order or segments), ROUTECAP_ERR_DTYPE or
 *         ROUTECAP_ERR_FORMAT (an id of a valid cell out of range or twice).
 */
ROUTECAP_API int32_t routecap_routing_import(const routecap_view *view, uint32_t flags, routecap_release release, void *context,
                                             routecap_routing **routing);

/* What the first 64 bytes of the serialised form say. */
typedef struct routecap_serialized {
    uint32_t struct_size;
    uint32_t version;
    uint64_t bytes;        /* of everything */
    uint64_t header_bytes; /* of the header with its tables: as much as routecap_serialized_splice reads */
    uint64_t first;
    uint64_t rows;
    uint32_t layers;
    uint32_t k;
    int32_t dtype;
    int32_t id_space;
} routecap_serialized;

#define ROUTECAP_SERIALIZED_MIN 64 /* bytes of the fixed part of the header */

/**
 * Read the fixed part of a serialised routing's header: what it is, and how much is still to come from a stream, as its sender claims: bound
 * header_bytes and bytes before you make room for them.
 *
 * @param data   The first bytes of it.
 * @param bytes  ROUTECAP_SERIALIZED_MIN or more (ROUTECAP_ERR_BUFFER_TOO_SMALL otherwise, unless the first bytes show that it is none).
 * @param info   Filled.
 * @return ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_BUFFER_TOO_SMALL.
 */
ROUTECAP_API int32_t routecap_serialized_info(const void *data, size_t bytes, routecap_serialized *info);

/* Where bytes of a spliced routing come from. */
#define ROUTECAP_PIECE_HEADER 0 /* the new header */
#define ROUTECAP_PIECE_HEAD 1   /* the first of the two */
#define ROUTECAP_PIECE_TAIL 2   /* the second */
#define ROUTECAP_PIECE_ZERO 3   /* bytes of 0: padding */

typedef struct routecap_piece {
    uint64_t offset;   /* in its source; 0 for ZERO */
    uint64_t bytes;
    int32_t source;    /* ROUTECAP_PIECE_* */
    uint32_t reserved; /* 0 */
} routecap_piece;

#define ROUTECAP_MAX_PIECES 16 /* enough for two routings in version 1 of the form */

/* A serialised routing as a list of pieces: written one after another (writev) they are it. */
typedef struct routecap_splice {
    uint32_t struct_size;
    uint32_t pieces;       /* how many */
    uint64_t bytes;        /* of everything */
    uint64_t header_bytes; /* of the new header */
} routecap_splice;

/**
 * Splice two serialised routings of one sequence: the rows of `head` before position `row`, and the rows of `tail` from it on. Prefill and decode
 * on different machines, the turns of a conversation, the parts of a stream; no id is read, and none needs to be there.
 *
 * The result begins with head's first row or at `row`, whichever comes first, and ends with tail's last row or at `row`; rows between that neither
 * has are missing. A layer that is recomputed in one is recomputed in the result. Both headers are checked; the planes are whoever's who reads
 * the result. Pieces of one source ascend, but head's tags and validity come after tail's ids: have both at hand.
 *
 * @param head, tail      At least their headers, header_bytes as routecap_serialized_info gives them.
 * @param header          Receives the new header; NULL with capacity 0 to ask for the sizes, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @param capacity        Size of header: splice->header_bytes, at most the sum of both headers' and 128.
 * @param pieces          [piece_capacity] receives where the bytes come from, in order; may be NULL if piece_capacity is 0.
 * @param piece_size      sizeof(routecap_piece) of the caller.
 * @param piece_capacity  At least splice->pieces; ROUTECAP_MAX_PIECES are enough.
 * @param splice          Filled, also on ROUTECAP_ERR_BUFFER_TOO_SMALL.
 * @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, the layers or their experts differ);
 *         ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
 */
ROUTECAP_API int32_t routecap_serialized_splice(const void *head, size_t head_bytes, const void *tail, size_t tail_bytes, uint64_t row,
                                                void *header, size_t capacity, routecap_piece *pieces, size_t piece_size, size_t piece_capacity,
                                                routecap_splice *splice);

#ifdef __cplusplus
}
#endif

#endif /* ROUTECAP_SERIALIZED_H */
