// A file that several processes map: taken whole when it is made, never shorter, and with a lock
// for each process that the kernel drops when the process ends.
//
// A lock belongs to the open file description that took it, not to a process or a descriptor. So
// it is taken on a description that nobody else has: opened anew through /proc, closed on exec,
// closed in a child of fork(), never handed out, and not what is mapped, since a mapping keeps its
// description. The memory is not mapped in a child either.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/process.h"

namespace routecap {

class MappedFile {
public:
    static constexpr uint32_t kLocks = 64;

    MappedFile() = default;
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;
    ~MappedFile();

    // Takes so many bytes, all zero: of memory without a name, which can neither shrink nor grow
    // from now on, whose descriptor is then its caller's (descriptor: -1), or of an empty file
    // that the caller opened.
    int32_t create(int32_t &descriptor, uint64_t bytes);
    // Maps what create() made, in this process or another.
    int32_t open(int32_t descriptor);

    uint8_t *memory() const { return memory_; }
    uint64_t bytes() const { return bytes_; }

    // Takes a lock. False: somebody has it. Only one thread at a time takes and releases locks.
    bool lock(uint32_t which);
    void unlock(uint32_t which);
    // Whether another description has it.
    bool locked_by_other(uint32_t which) const;

private:
    int32_t map(int32_t descriptor, const char *what);

    uint8_t *memory_ = nullptr;
    uint64_t bytes_ = 0;
    uint32_t process_ = 0;  // it was mapped in
    ForkClosed locks_;
};

}  // namespace routecap
