// Two rows of one position meet: which cells stay, which reasons, and which tag. Everything that
// merges rows does it here: requests, stores, sequences, and the merge of routings. A write that
// replaces a row merges nothing.
//
// `to` is the row that wins where both have a cell, `from` the other:
//
//   to \ from        not there              empty                  with valid cells
//   ---------------  ---------------------  ---------------------  ------------------------------
//   not there        the higher reason      the higher reason of   from's cells and its tag; the
//                                           each cell, from's tag  higher reason of the others
//   empty            the higher reason of   the higher reason of   from's cells and its tag; the
//                    each cell              each cell              higher reason of the others
//   with cells       the higher reason of   the higher reason of   from's cells where to has none;
//                    each missing cell      each missing cell      if any: the lower tag
//
// A row is not there if all its cells have one reason of whole rows (Shape::row_reason). An empty
// row is there, and has reasons of cells. Of two reasons the one with the higher rank stands, and
// of two of one rank that of `to` (include/routecap/reading.h). A tag has a meaning only where a
// cell is valid; otherwise it stays unless the table says so. The weights of a cell come with its
// ids, and whether two cells differ is asked of the ids alone.
#pragma once

#include <cstdint>

#include "base/numbers.h"
#include "base/shape.h"

namespace routecap {

// What a row would change in another one.
struct Meeting {
    bool overlap = false;  // both have a cell
    bool fills = false;    // from has one that `to` lacks
    bool reasons = false;  // from has the higher reason for a cell that both lack
    bool keeps = false;    // `to` has a cell, or a higher reason, that from does not have

    bool changes() const { return fills || reasons; }
};
Meeting compare_rows(const Shape &shape, const uint8_t *to, const uint8_t *from);

// Whether two rows have different experts in a cell that both have.
bool differ(const Shape &shape, const uint8_t *a, const uint8_t *b);

// Merges `from` into `to`, as the table says, and returns the tag that `to` has then.
[[nodiscard]] Tag merge(const Shape &shape, uint8_t *to, Tag to_tag, const uint8_t *from,
                        Tag from_tag);

}  // namespace routecap
