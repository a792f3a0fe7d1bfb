// deliver: copy the rows and positions of a small step to host memory, signal their arrival, and
// name the slot of the next step. This is all the device work of issue, in one launch.
//
// slot in device memory -> slot in page-locked host memory. Items of 16 bytes of the slot come
// first, then those of 4 bytes of the positions.
#pragma once

#include "slot.h"

namespace routecap::kernels {

struct Deliver {
    Control *control;
    const uint8_t *from;  // the slot: its header and rows
    uint8_t *to;
    uint32_t chunks;
    uint32_t position_words;
    const void *positions;
    void *positions_to;
    uint64_t *arrived;  // in host memory; becomes `epoch` when all else is there
    uint64_t epoch;
    Named next;

    struct alignas(16) Chunk {
        uint64_t words[2];
    };

    ROUTECAP_BODY uint32_t outer() const { return 1; }
    ROUTECAP_BODY uint32_t inner() const { return chunks + position_words; }

    ROUTECAP_BODY void item(uint32_t, uint32_t i) const {
        if (i < chunks)
            reinterpret_cast<Chunk *>(to)[i] = reinterpret_cast<const Chunk *>(from)[i];
        else
            static_cast<uint32_t *>(positions_to)[i - chunks] =
                static_cast<const uint32_t *>(positions)[i - chunks];
    }

    // Runs once per launch, in the thread that finds all items done. Streams may wait for the name,
    // and the host for the epoch.
    ROUTECAP_BODY void last() const {
#if defined(__CUDA_ARCH__)
        __threadfence_system();
        control->named = next;
        *static_cast<volatile uint64_t *>(arrived) = epoch;
#else
        __atomic_store_n(&control->named.word, next.word, __ATOMIC_RELEASE);
        __atomic_store_n(arrived, epoch, __ATOMIC_RELEASE);
#endif
    }
};

}  // namespace routecap::kernels
