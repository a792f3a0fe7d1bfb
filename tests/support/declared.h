// Generated from the headers: run python3 dev/generate. Do not edit.
// Why cells are missing, for tests.
#pragma once

#include <routecap.h>

// Where a cell has two reasons, the one that stands first here is the cell's.
constexpr uint8_t kBestFirst[] = {ROUTECAP_MISSING_DUPLICATE, ROUTECAP_MISSING_OUT_OF_RANGE,
                                  ROUTECAP_MISSING_UNWRITTEN, ROUTECAP_MISSING_TAKEN,
                                  ROUTECAP_MISSING_LOST, ROUTECAP_MISSING_REFUSED,
                                  ROUTECAP_MISSING_STALE, ROUTECAP_MISSING_EVICTED,
                                  ROUTECAP_MISSING_NOT_PUBLISHED, ROUTECAP_MISSING_ABSENT};
// Those of whole rows that are not there.
constexpr uint8_t kOfRows[] = {ROUTECAP_MISSING_TAKEN, ROUTECAP_MISSING_LOST,
                               ROUTECAP_MISSING_REFUSED, ROUTECAP_MISSING_STALE,
                               ROUTECAP_MISSING_EVICTED, ROUTECAP_MISSING_NOT_PUBLISHED,
                               ROUTECAP_MISSING_ABSENT};
