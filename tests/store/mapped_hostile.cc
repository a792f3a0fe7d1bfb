// Memory that something else writes into, and a system that refuses: nothing crashes, waits or
// delivers an id that was not published, and every refusal says why.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <functional>
#include <thread>

#include "mapped.h"

// ---- Calls of the system that fail: the n-th of this thread from now on, of those below. Or it gets
// a signal then.
namespace {

thread_local uint64_t fail_at = 0;  // 1: the next; 0: none
thread_local bool failed = false;
thread_local int fail_with = 0, signal_with = 0;

bool fails() {
    if (fail_at == 0 || --fail_at > 0) return false;
    if (signal_with != 0) {
        raise(signal_with);
        return false;
    }
    failed = true;
    errno = fail_with;
    return true;
}
template <class Function>
Function *real(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
int memfd_create(const char *name, unsigned flags) noexcept {
    static auto *const call = real<int(const char *, unsigned)>("memfd_create");
    return fails() ? -1 : call(name, flags);
}
int fallocate(int fd, int mode, off_t at, off_t bytes) {
    static auto *const call = real<int(int, int, off_t, off_t)>("fallocate");
    return fails() ? -1 : call(fd, mode, at, bytes);
}
int fstat(int fd, struct stat *out) noexcept {
    static auto *const call = real<int(int, struct stat *)>("fstat");
    return fails() ? -1 : call(fd, out);
}
int open(const char *path, int flags, ...) {
    static auto *const call = real<int(const char *, int, ...)>("open");
    va_list arguments;
    va_start(arguments, flags);
    const auto mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails() ? -1 : call(path, flags, mode);
}
ssize_t read(int fd, void *to, size_t bytes) {
    static auto *const call = real<ssize_t(int, void *, size_t)>("read");
    return fails() ? -1 : call(fd, to, bytes);
}
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    static auto *const call = real<ssize_t(int, void *, size_t, off_t)>("pread");
    return fails() ? -1 : call(fd, to, bytes, at);
}
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    static auto *const call = real<ssize_t(int, const void *, size_t, off_t)>("pwrite");
    return fails() ? -1 : call(fd, from, bytes, at);
}
int ftruncate(int fd, off_t bytes) noexcept {
    static auto *const call = real<int(int, off_t)>("ftruncate");
    return fails() ? -1 : call(fd, bytes);
}
int fcntl(int fd, int what, ...) {
    static auto *const call = real<int(int, int, ...)>("fcntl");
    va_list arguments;
    va_start(arguments, what);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return fails() ? -1 : call(fd, what, argument);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
    static auto *const call = real<void *(void *, size_t, int, int, int, off_t)>("mmap");
    return fails() ? MAP_FAILED : call(at, bytes, protection, flags, fd, offset);
}
int madvise(void *at, size_t bytes, int advice) noexcept {
    static auto *const call = real<int(void *, size_t, int)>("madvise");
    return fails() ? -1 : call(at, bytes, advice);
}
ssize_t getrandom(void *to, size_t bytes, unsigned flags) {
    static auto *const call = real<ssize_t(void *, size_t, unsigned)>("getrandom");
    return fails() ? -1 : call(to, bytes, flags);
}
}

using namespace mapped;

namespace {

size_t open_descriptors() {
    size_t n = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all) != nullptr) n++;
    closedir(all);
    return n;
}
size_t mappings_of_stores() {
    size_t n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (fgets(line, sizeof line, maps) != nullptr)
        n += std::strstr(line, "routecap_store") != nullptr;
    fclose(maps);
    return n;
}

const Options kSmall{
    .layers = 2, .k = 2, .experts = 20, .block_rows = 2, .key_bytes = 8, .blocks = 8};

TEST(FailingSystem, every_call_that_fails_is_an_error_with_a_line_and_leaves_nothing_open) {
    {
        Descriptor warm;
        Process all(kSmall, warm);
    }
    for (const int error : {ENOSPC, EPERM, ENOSYS, EMFILE}) {
        fail_with = error;
        const size_t descriptors = open_descriptors(), mappings = mappings_of_stores();
        for (uint64_t n = 1;; n++) {
            SCOPED_TRACE(n);
            Descriptor descriptor;
            failed = false;
            fail_at = n;
            std::unique_ptr<Process> made(new Process(kSmall, descriptor));
            fail_at = 0;
            if (!failed) {
                EXPECT_EQ(made->status, ROUTECAP_OK);
                break;
            }
            // A lock that cannot be had is taken for that of another: the next one will do.
            if (made->status == ROUTECAP_OK) {
                EXPECT_EQ(made->publish(1, 1), MappedCount::published);
                continue;
            }
            EXPECT_TRUE(made->status == ROUTECAP_ERR_NO_MEMORY ||
                        made->status == ROUTECAP_ERR_NO_BACKEND)
                << made->status;
            EXPECT_STRNE(last_error(), "");
            EXPECT_EQ(descriptor.get(), -1);
            made.reset();
            EXPECT_EQ(open_descriptors(), descriptors);
            EXPECT_EQ(mappings_of_stores(), mappings);
        }
        // The same of opening, while somebody else has it open.
        Descriptor descriptor;
        Process first(kSmall, descriptor);
        first.publish(1, 1);
        for (uint64_t n = 1;; n++) {
            SCOPED_TRACE(n);
            const size_t before = open_descriptors();
            failed = false;
            fail_at = n;
            std::unique_ptr<Process> opened(new Process(kSmall, descriptor));
            fail_at = 0;
            const bool done = !failed;
            if (opened->status == ROUTECAP_OK)
                EXPECT_TRUE(opened->has(1, 1));
            else
                EXPECT_STRNE(last_error(), "");
            opened.reset();
            EXPECT_EQ(open_descriptors(), before);
            EXPECT_TRUE(first.has(1, 1));
            if (done) break;
        }
    }
}

TEST(Sealed, the_memory_can_neither_shrink_nor_grow) {
    Descriptor descriptor;
    Process a(kSmall, descriptor);
    struct stat now {};
    ASSERT_EQ(fstat(descriptor.get(), &now), 0);
    EXPECT_NE(ftruncate(descriptor.get(), 0), 0);
    EXPECT_NE(ftruncate(descriptor.get(), now.st_size + 1), 0);
    EXPECT_EQ(static_cast<off_t>(now.st_blocks) * 512, now.st_size);  // all of it has memory
}

TEST(Refused, a_table_of_anything_else_and_the_line_names_it) {
    Descriptor descriptor;
    Process a(kSmall, descriptor);
    const auto opened = [&](const std::function<void(StoreConfig &)> &change) {
        StoreConfig c = config(kSmall);
        change(c);
        std::unique_ptr<MappedBlocks> blocks;
        return MappedBlocks::open(c, descriptor.get(), blocks);
    };
    EXPECT_EQ(opened([](auto &) {}), ROUTECAP_OK);
    const auto refused = [&](const char *word, auto change) {
        EXPECT_EQ(opened(change), ROUTECAP_ERR_SHAPE_MISMATCH) << word;
        EXPECT_NE(std::strstr(last_error(), word), nullptr) << last_error();
    };
    refused("layers", [](auto &c) { c.shape = mapped::make_shape(3, 2, 20); });
    refused("k", [](auto &c) { c.shape = mapped::make_shape(2, 3, 20); });
    refused("experts", [](auto &c) { c.shape = mapped::make_shape(2, 2, 21); });
    refused("block_rows", [](auto &c) { c.block_rows = 3; });
    refused("key_bytes", [](auto &c) { c.key_bytes = 16; });
    EXPECT_EQ(opened([](auto &c) { c.flags = ROUTECAP_STORE_SLOT_KEYS; }), ROUTECAP_ERR_ARGUMENT);
    EXPECT_NE(std::strstr(last_error(), "SLOT_KEYS"), nullptr) << last_error();
    const auto shape_with = [](int32_t space, int32_t last_layer, int32_t provenance) {
        return std::make_shared<const Shape>(
            2, space, std::vector<int32_t>{0, last_layer}, std::vector<uint32_t>{20, 20},
            std::vector<int32_t>{ROUTECAP_PROVENANCE_CAPTURED, provenance});
    };
    refused("id space", [&](auto &c) {
        c.shape = shape_with(ROUTECAP_ID_SPACE_PHYSICAL, 1, ROUTECAP_PROVENANCE_CAPTURED);
    });
    refused("layer_map", [&](auto &c) {
        c.shape = shape_with(ROUTECAP_ID_SPACE_LOGICAL, 2, ROUTECAP_PROVENANCE_CAPTURED);
    });
    refused("provenance", [&](auto &c) {
        c.shape = shape_with(ROUTECAP_ID_SPACE_LOGICAL, 1, ROUTECAP_PROVENANCE_RECOMPUTED);
    });

    // What is no table at all.
    for (const auto &bytes : {std::string("short"), std::string(100000, 'x')}) {
        Descriptor other(memfd_create("routecap_store_not", 0));
        ASSERT_EQ(write(other.get(), bytes.data(), bytes.size()),
                  static_cast<ssize_t>(bytes.size()));
        std::unique_ptr<MappedBlocks> blocks;
        EXPECT_EQ(MappedBlocks::open(config(kSmall), other.get(), blocks), ROUTECAP_ERR_FORMAT);
    }
    std::unique_ptr<MappedBlocks> blocks;
    EXPECT_EQ(MappedBlocks::open(config(kSmall), -1, blocks), ROUTECAP_ERR_FORMAT);
    Descriptor folder(open("/", O_RDONLY));
    EXPECT_EQ(MappedBlocks::open(config(kSmall), folder.get(), blocks), ROUTECAP_ERR_FORMAT);
}

TEST(Named, an_empty_file_becomes_a_table_once_however_many_open_it) {
    char path[] = "/tmp/routecap_named_XXXXXX";
    Descriptor descriptor(mkstemp(path));
    std::vector<std::thread> threads;
    std::atomic<int> stored{0};
    for (uint64_t t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            Process process(kSmall, descriptor);
            ASSERT_EQ(process.status, ROUTECAP_OK) << last_error();
            stored += process.publish(t, t) == MappedCount::published;
        });
    for (std::thread &t : threads) t.join();
    EXPECT_EQ(stored, 4);
    Process last(kSmall, descriptor);
    for (uint64_t k = 0; k < 4; k++) EXPECT_TRUE(last.has(k, k)) << k;
    unlink(path);
}

// The memory of a table, as something that knows nothing of it writes it.
class Bytes {
public:
    explicit Bytes(Descriptor &descriptor) {
        struct stat now {};
        fstat(descriptor.get(), &now);
        size_ = static_cast<size_t>(now.st_size);
        at_ = static_cast<MappedWord *>(
            mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0));
    }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
    ~Bytes() { munmap(at_, size_); }
    size_t words() const { return size_ / 8; }
    MappedWord &operator[](size_t i) { return at_[i]; }

private:
    MappedWord *at_;
    size_t size_;
};

// A file of 0600 that is gone with the test.
class NamedFile {
public:
    NamedFile() : descriptor(::open(name().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)) {
        unlink(name().c_str());
    }
    Descriptor descriptor;

private:
    static std::string name() { return "/tmp/routecap_made_" + std::to_string(getpid()); }
};

// A child that gets a signal at the n-th call of the system within an open. Whether it got it; it
// is still there if it was stopped.
bool signalled_in_open(int signal, uint64_t n, Descriptor &descriptor, pid_t &child) {
    child = fork();
    if (child == 0) {
        signal_with = signal;
        fail_at = n;
        Options larger = kSmall;
        larger.blocks = 64;
        MappedBlocks *const made = [&] {
            std::unique_ptr<MappedBlocks> blocks;
            MappedBlocks::open(config(larger), descriptor.get(), blocks);
            return blocks.release();
        }();
        _exit(made != nullptr ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    EXPECT_TRUE(!WIFEXITED(status) || WEXITSTATUS(status) == 0);
    return !WIFEXITED(status);
}
void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

// The file had the store's size by then and no header, and every open refused it.
TEST(Dead, while_it_made_a_store_leaves_a_file_that_the_next_makes_one_of) {
    pid_t child;
    for (uint64_t n = 1, more = true; more; n++) {
        SCOPED_TRACE(n);
        NamedFile file;
        more = signalled_in_open(SIGKILL, n, file.descriptor, child);
        Process next(kSmall, file.descriptor);
        ASSERT_EQ(next.status, ROUTECAP_OK) << last_error();
        EXPECT_EQ(next.publish(1, 1), MappedCount::published);
        Process other(kSmall, file.descriptor);
        ASSERT_EQ(other.status, ROUTECAP_OK) << last_error();
        EXPECT_TRUE(other.has(1, 1));
    }
    // Whatever stands behind the mark of one that is being made.
    std::mt19937 random(1);
    for (const size_t bytes : {8, 100, 5000, 4 << 20}) {
        NamedFile file;
        std::vector<uint8_t> half(bytes);
        for (uint8_t &byte : half) byte = static_cast<uint8_t>(random());
        std::memcpy(half.data(), "rcmaking", 8);
        ASSERT_EQ(write(file.descriptor.get(), half.data(), half.size()),
                  static_cast<ssize_t>(bytes));
        Process next(kSmall, file.descriptor);
        ASSERT_EQ(next.status, ROUTECAP_OK) << last_error();
        EXPECT_EQ(next.find(0), kNotPublished);
        EXPECT_EQ(next.publish(1, 1), MappedCount::published);
        EXPECT_TRUE(next.has(1, 1));
    }
}

TEST(Refused, a_file_of_something_else_stays_as_it_is) {
    for (const size_t bytes : {1, 8, 5000}) {
        NamedFile file;
        const std::vector<char> zeros(bytes);
        ASSERT_EQ(write(file.descriptor.get(), zeros.data(), bytes), static_cast<ssize_t>(bytes));
        EXPECT_EQ(Process(kSmall, file.descriptor).status, ROUTECAP_ERR_FORMAT);
        struct stat now {};
        fstat(file.descriptor.get(), &now);
        EXPECT_EQ(static_cast<size_t>(now.st_size), bytes);
    }
}

// Every open held a lock that the others waited for.
TEST(Stopped, in_an_open_holds_up_no_other) {
    pid_t child;
    NamedFile file;
    Process first(kSmall, file.descriptor);
    for (uint64_t n = 1; signalled_in_open(SIGSTOP, n, file.descriptor, child); n++) {
        EXPECT_EQ(Process(kSmall, file.descriptor).status, ROUTECAP_OK) << n << last_error();
        end(child);
    }
    // One that is stopped while it makes the store is waited for, but not for ever.
    NamedFile other;
    uint64_t calls = 1;
    for (; calls < 100; calls++) {
        NamedFile tried;
        ASSERT_TRUE(signalled_in_open(SIGSTOP, calls, tried.descriptor, child));
        struct stat now {};
        fstat(tried.descriptor.get(), &now);
        end(child);
        if (now.st_size > 0) break;
    }
    ASSERT_TRUE(signalled_in_open(SIGSTOP, calls, other.descriptor, child));
    EXPECT_EQ(Process(kSmall, other.descriptor).status, ROUTECAP_ERR_NOT_READY);
    end(child);
    EXPECT_EQ(Process(kSmall, other.descriptor).status, ROUTECAP_OK) << last_error();
}

TEST(Refused, a_file_of_another_user) {
    if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
    NamedFile file;
    ASSERT_EQ(fchown(file.descriptor.get(), 12345, 12345), 0);
    // A file that nobody can open by a name came as a descriptor.
    EXPECT_EQ(Process(kSmall, file.descriptor).status, ROUTECAP_OK);
    char name[] = "/tmp/routecap_owned_XXXXXX";
    Descriptor named(mkstemp(name));
    ASSERT_EQ(fchown(named.get(), 12345, 12345), 0);
    EXPECT_EQ(Process(kSmall, named).status, ROUTECAP_ERR_ARGUMENT);
    EXPECT_STREQ(last_error(), "the file belongs to user 12345, and this is user 0");
    ASSERT_EQ(fchown(named.get(), 0, 0), 0);
    EXPECT_EQ(Process(kSmall, named).status, ROUTECAP_OK);
    unlink(name);
}

TEST(Refused, a_header_with_any_byte_changed) {
    Descriptor descriptor;
    Process a(kSmall, descriptor);
    Bytes bytes(descriptor);
    // 96 bytes, two layers of 12, the checksum; the words behind are nobody's.
    for (size_t byte = 0; byte < 128; byte++) {
        const uint64_t flip = uint64_t{1 + byte % 255} << byte % 8 * 8;
        bytes[byte / 8].fetch_xor(flip);
        std::unique_ptr<MappedBlocks> blocks;
        EXPECT_EQ(MappedBlocks::open(config(kSmall), descriptor.get(), blocks), ROUTECAP_ERR_FORMAT)
            << byte;
        bytes[byte / 8].fetch_xor(flip);
    }
    EXPECT_EQ(Process(kSmall, descriptor).status, ROUTECAP_OK);
}

// A header that is whole and of another boot, version or size.
TEST(Refused, a_whole_header_that_says_something_else) {
    Descriptor descriptor;
    Process a(kSmall, descriptor);
    Bytes bytes(descriptor);
    const auto opens = [&](size_t byte, uint8_t change, const char *line) {
        const auto seal = [&] {
            bytes[15] = checksum(15, 0, [&](size_t i) { return bytes[i].load(); });
        };
        const uint64_t flip = uint64_t{change} << byte % 8 * 8;
        bytes[byte / 8].fetch_xor(flip);
        seal();
        std::unique_ptr<MappedBlocks> blocks;
        const int32_t status = MappedBlocks::open(config(kSmall), descriptor.get(), blocks);
        EXPECT_EQ(status, ROUTECAP_ERR_FORMAT) << line;
        EXPECT_NE(std::strstr(last_error(), line), nullptr) << last_error();
        bytes[byte / 8].fetch_xor(flip);
        seal();
    };
    opens(8, 3, "version");
    opens(20, 1, "boot");
    opens(57, 1, "size");   // the size of the file
    opens(72, 64, "size");  // slots
    opens(75, 240, "size");
    EXPECT_EQ(Process(kSmall, descriptor).status, ROUTECAP_OK);
}

// Bits are turned over everywhere but in the header, while blocks are published, read and
// evicted. Two bits of one word, or two words of one block, may well be wrong at once.
TEST(Hostile, turned_bits_never_deliver_a_wrong_id) {
    const Options o = small(256);
    Descriptor descriptor;
    Process first(o, descriptor);
    Bytes bytes(descriptor);
    constexpr uint64_t kKeys = 300;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> delivered{0}, turned{0};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        std::mt19937_64 random(1);
        // The generation stays: a store that has advanced has nothing more to read.
        const size_t control = 4096 / 8, evictions = 8192 / 8,
                     behind = evictions + Evictions::kWords;
        while (!stop) {
            const uint64_t where = random() % 16;
            const size_t word = where == 0   ? control + 1 + random() % 100
                                : where == 1 ? evictions + random() % (behind - evictions)
                                             : behind + random() % (bytes.words() - behind);
            uint64_t bits = uint64_t{1} << random() % 64;
            if (random() % 4 == 0) bits = random();
            bytes[word].fetch_xor(bits);
            turned++;
            if (turned % 8 == 0) std::this_thread::yield();
        }
    });
    for (uint32_t t = 0; t < 2; t++)
        threads.emplace_back([&, t] {
            Process process(o, descriptor);
            std::mt19937 random(t);
            while (!stop) {
                const uint64_t key = random() % kKeys;
                switch (random() % 14) {
                    case 0: process.evict(key); break;
                    case 1:
                    case 2:
                    case 3:
                    case 4:
                    case 5: process.publish(key, key, random() % 8); break;
                    default: {
                        if (process.read(key) != 0) break;
                        delivered++;
                        const Shape &shape = process.shape();
                        const Block &read = process.read_rows();
                        const Block all = block_of(shape, 2, 1, key);
                        for (uint32_t r = 0; r < 2; r++)
                            for (uint32_t l = 0; l < 2; l++)
                                if (Shape::valid(&read.validity[r], l)) {
                                    ASSERT_EQ(std::memcmp(&read.ids[r * 4 + l * 2],
                                                          &all.ids[r * 4 + l * 2], 2),
                                              0);
                                }
                    }
                }
            }
        });
    run_until([&] {
        return delivered >= 10000 && turned >= 10000 && first.counted(MappedCount::damaged) > 0;
    });
    stop = true;
    for (std::thread &t : threads) t.join();
    EXPECT_GE(delivered, 10000u);
    EXPECT_GE(turned, 10000u);
    EXPECT_GT(first.counted(MappedCount::damaged), 0u);
}

// Each word of a table's blocks, one after another: what is read is right or absent.
TEST(Hostile, each_word_of_slots_and_rows_is_noticed) {
    for (uint64_t bit = 0; bit < 64; bit += 9) {
        Descriptor descriptor;
        Process a(kSmall, descriptor);
        for (uint64_t k = 0; k < kSmall.blocks; k++) a.publish(k, k);
        Bytes bytes(descriptor);
        for (size_t word = 8192 / 8 + Evictions::kWords; word < bytes.words(); word++) {
            bytes[word].fetch_xor(uint64_t{1} << bit);
            for (uint64_t k = 0; k < kSmall.blocks; k++) {
                if (a.read(k) != 0) continue;
                ASSERT_EQ(a.read_rows(), block_of(a.shape(), 2, 1, k)) << word;
            }
            bytes[word].fetch_xor(uint64_t{1} << bit);
            for (uint64_t k = 0; k < kSmall.blocks; k++)
                if (a.find(k) != 0) a.publish(k, k);  // again
        }
        EXPECT_GT(a.counted(MappedCount::damaged), 0u);
    }
}

TEST(Hostile, a_generation_that_goes_back_does_not_for_whoever_saw_it) {
    Descriptor descriptor;
    Process a(kSmall, descriptor);
    a.publish(1, 1);
    a.advance(9);
    Bytes bytes(descriptor);
    bytes[4096 / 8] = 1;
    EXPECT_EQ(a.is_at(), 9u);
    EXPECT_EQ(a.read(1), kStale);
    a.advance(10);
    EXPECT_EQ(bytes[4096 / 8], 10 * kTags);
}

}  // namespace
