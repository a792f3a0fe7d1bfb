// A file that several processes map: taken whole when it is made, never shorter, and with two
// locks, which the kernel drops when the process that has them ends.
//
// While it is made it begins with a mark, and whoever has the lock for that and finds the mark
// begins anew: the one before has died.
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
    // Locks: of who makes the file, and of who writes into it.
    static constexpr uint32_t kMaker = 0, kWriter = 1;

    MappedFile() = default;
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;
    ~MappedFile();

    // Makes an empty file in memory, without a name. The descriptor is the caller's.
    static int32_t create(int32_t &descriptor);
    // Such a file neither shrinks nor grows from then on.
    static int32_t seal(int32_t descriptor);
    // Begins with a descriptor that a caller has: what its file has in it. Of those who find that
    // nobody has made anything of it one has the lock, and is to take() the memory, to write at its
    // beginning what is complete only then, and made(). The others wait for that, unless the file
    // does not grow any more: who has the lock may be stopped. Others map() what is there.
    enum class Has { lock, something };
    int32_t begin(int32_t descriptor, Has &has);
    int32_t take(int32_t descriptor, uint64_t bytes);
    int32_t map(int32_t descriptor);
    void made() { unlock(kMaker); }

    uint8_t *memory() const { return memory_; }
    uint64_t bytes() const { return bytes_; }

    // Takes a lock. False: somebody has it. Only one thread at a time takes and releases locks.
    bool lock(uint32_t which);
    void unlock(uint32_t which);

private:
    int32_t open_locks(int32_t descriptor);
    int32_t allocate_and_map(int32_t descriptor, uint64_t bytes);

    uint8_t *memory_ = nullptr;
    uint64_t bytes_ = 0;
    uint32_t process_ = 0;  // it was mapped in
    ForkClosed locks_;
};

}  // namespace routecap
