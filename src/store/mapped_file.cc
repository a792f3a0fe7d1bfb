#include "store/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/status.h"
#include "routecap.h"

namespace routecap {
namespace {

constexpr off_t kFirstLock = off_t{1} << 62;  // far behind the last byte
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// A call of the system failed: its name, and errno.
int32_t failed(const char *call) {
    const int error = errno;
    const bool memory = error == ENOSPC || error == ENOMEM || error == EFBIG || error == EDQUOT ||
                        error == EMFILE || error == ENFILE;
    return report(memory ? ROUTECAP_ERR_NO_MEMORY : ROUTECAP_ERR_NO_BACKEND,
                  "the store's memory: %s: %s", call, std::strerror(error));
}

// Every byte gets memory now, or none does: writing a byte that has none ends a process.
bool allocate(int descriptor, uint64_t bytes) {
    int result;
    do {
        result = fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

struct flock lock_of(uint32_t which, short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = kFirstLock + static_cast<off_t>(which);
    lock.l_len = 1;
    return lock;
}

}  // namespace

MappedFile::~MappedFile() {
    // In a child of fork() there is nothing at that address, or something else.
    if (memory_ != nullptr && process_ == process_generation()) munmap(memory_, bytes_);
}

int32_t MappedFile::create(uint64_t bytes, int32_t &descriptor) {
    const int made = memfd_create("routecap_store", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) return failed("memfd_create");
    int32_t status = open_locks(made);
    if (status == ROUTECAP_OK) status = take(made, bytes);
    if (status == ROUTECAP_OK && fcntl(made, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0)
        status = failed("F_ADD_SEALS");
    if (status < 0)
        close(made);
    else
        descriptor = made;
    return status;
}

int32_t MappedFile::open_locks(int32_t descriptor) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return locks_.open(path, O_RDWR) ? ROUTECAP_OK : failed("opening it for locks through /proc");
}

int32_t MappedFile::begin(int32_t descriptor, bool &empty) {
    struct stat now {};
    if (fstat(descriptor, &now) != 0)
        return errno != EBADF
                   ? failed("fstat")
                   : report(ROUTECAP_ERR_FORMAT, "descriptor %d is not open", descriptor);
    if (!S_ISREG(now.st_mode))
        return report(ROUTECAP_ERR_FORMAT, "descriptor %d is not that of a file", descriptor);
    if (int32_t s = open_locks(descriptor); s < 0) return s;
    struct flock lock = lock_of(kLocks, F_WRLCK);
    int locked;
    do {
        locked = fcntl(locks_.get(), F_OFD_SETLKW, &lock);
    } while (locked != 0 && errno == EINTR);
    if (locked != 0 || fstat(descriptor, &now) != 0) return failed("locking it");
    empty = now.st_size == 0;
    return ROUTECAP_OK;
}

int32_t MappedFile::take(int32_t descriptor, uint64_t bytes) {
    // Beyond this limit the system sends a signal that ends the process.
    struct rlimit limit {};
    if (bytes > INT64_MAX || (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur))
        return report(ROUTECAP_ERR_NO_MEMORY,
                      "the store's memory: %llu bytes are more than a file may have", ull(bytes));
    if (allocate(descriptor, bytes)) return map(descriptor);
    const int32_t status = failed("fallocate");
    static_cast<void>(ftruncate(descriptor, 0) == 0);
    return status;
}

int32_t MappedFile::map(int32_t descriptor) {
    struct stat now {};
    if (fstat(descriptor, &now) != 0) return failed("fstat");
    const auto bytes = static_cast<uint64_t>(now.st_size);
    // A hole would be filled where there may be no room for it.
    if (!allocate(descriptor, bytes)) return failed("fallocate");
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return failed("mmap");
    memory_ = static_cast<uint8_t *>(memory);
    bytes_ = bytes;
    process_ = process_generation();
    if (madvise(memory_, bytes_, MADV_DONTFORK) != 0) return failed("MADV_DONTFORK");
    return ROUTECAP_OK;
}

bool MappedFile::lock(uint32_t which) {
    struct flock lock = lock_of(which, F_WRLCK);
    return fcntl(locks_.get(), F_OFD_SETLK, &lock) == 0;
}

void MappedFile::unlock(uint32_t which) {
    struct flock lock = lock_of(which, F_UNLCK);
    fcntl(locks_.get(), F_OFD_SETLK, &lock);
}

bool MappedFile::locked_by_other(uint32_t which) const {
    struct flock lock = lock_of(which, F_WRLCK);
    // A call that fails does not say that somebody is dead.
    return fcntl(locks_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace routecap
