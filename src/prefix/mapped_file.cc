#include "prefix/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

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

// Every byte gets memory now, or none does: writing a byte that has none ends a process. The file
// grows by parts, so that others see that it goes on.
bool allocate(int descriptor, uint64_t bytes) {
    constexpr uint64_t kPart = uint64_t{16} << 20;
    for (uint64_t at = 0; at < bytes;) {
        const uint64_t part = std::min(kPart, bytes - at);
        const int result =
            fallocate(descriptor, 0, static_cast<off_t>(at), static_cast<off_t>(part));
        if (result == 0)
            at += part;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

// What a file begins with while it is made; and how long others wait while it does not grow.
constexpr char kMaking[8] = {'r', 'c', 'm', 'a', 'k', 'i', 'n', 'g'};
constexpr auto kPatience = std::chrono::seconds(3);

enum class Content { nothing, half, something };
int32_t look(int descriptor, Content &content, uint64_t &bytes) {
    struct stat now {};
    char begins[8]{};
    if (fstat(descriptor, &now) != 0) return failed("fstat");
    bytes = static_cast<uint64_t>(now.st_size);
    const ssize_t n = pread(descriptor, begins, sizeof begins, 0);
    if (n < 0) return failed("pread");
    content = n == 0                                              ? Content::nothing
              : std::memcmp(begins, kMaking, sizeof kMaking) == 0 ? Content::half
                                                                  : Content::something;
    return ROUTECAP_OK;
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

int32_t MappedFile::create(int32_t &descriptor) {
    descriptor = memfd_create("routecap_store", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return descriptor >= 0 ? ROUTECAP_OK : failed("memfd_create");
}
int32_t MappedFile::seal(int32_t descriptor) {
    return fcntl(descriptor, F_ADD_SEALS, kSeals | F_SEAL_SEAL) == 0 ? ROUTECAP_OK
                                                                     : failed("F_ADD_SEALS");
}

int32_t MappedFile::open_locks(int32_t descriptor) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return locks_.open(path, O_RDWR) ? ROUTECAP_OK : failed("opening it for locks through /proc");
}

int32_t MappedFile::begin(int32_t descriptor, Has &has) {
    struct stat now {};
    if (fstat(descriptor, &now) != 0)
        return errno != EBADF
                   ? failed("fstat")
                   : report(ROUTECAP_ERR_FORMAT, "descriptor %d is not open", descriptor);
    if (!S_ISREG(now.st_mode))
        return report(ROUTECAP_ERR_FORMAT, "descriptor %d is not that of a file", descriptor);
    // Whoever owns a file can make its rows wrong. One without a name came from a process that had
    // a descriptor to give.
    if (now.st_nlink > 0 && now.st_uid != geteuid() && now.st_uid != 0)
        return report(ROUTECAP_ERR_ARGUMENT, "the file belongs to user %u, and this is user %u",
                      now.st_uid, geteuid());
    if (int32_t s = open_locks(descriptor); s < 0) return s;
    uint64_t seen = 0;
    for (auto since = std::chrono::steady_clock::now();;) {
        Content content;
        uint64_t bytes = 0;
        if (int32_t s = look(descriptor, content, bytes); s < 0) return s;
        if (content == Content::something) {
            has = Has::something;
            return ROUTECAP_OK;
        }
        if (lock(kMaker)) {
            // It may have been made since.
            if (int32_t s = look(descriptor, content, bytes); s < 0) return s;
            has = content == Content::something ? Has::something : Has::lock;
            if (has == Has::something) unlock(kMaker);
            return ROUTECAP_OK;
        }
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) return failed("locking it");
        const auto time = std::chrono::steady_clock::now();
        if (std::exchange(seen, bytes) != bytes) since = time;
        if (time - since > kPatience)
            return report(ROUTECAP_ERR_NOT_READY,
                          "another process is making the store, and gets no further");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

int32_t MappedFile::take(int32_t descriptor, uint64_t bytes) {
    // Somebody may have died while making something larger. What is there without the mark is
    // complete.
    if (ftruncate(descriptor, 0) != 0) return failed("ftruncate");
    if (pwrite(descriptor, kMaking, sizeof kMaking, 0) != sizeof kMaking) return failed("pwrite");
    const int32_t status = allocate_and_map(descriptor, bytes);
    if (status < 0) static_cast<void>(ftruncate(descriptor, 0) == 0);
    return status;
}

int32_t MappedFile::allocate_and_map(int32_t descriptor, uint64_t bytes) {
    // Beyond this limit the system sends a signal that ends the process.
    struct rlimit limit {};
    if (bytes > INT64_MAX || (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur))
        return report(ROUTECAP_ERR_NO_MEMORY,
                      "the store's memory: %llu bytes are more than a file may have", ull(bytes));
    if (!allocate(descriptor, bytes)) return failed("fallocate");
    return map(descriptor);
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

}  // namespace routecap
