// Blocks that several processes change at once, some of which are killed: a block is whole or it is
// not there, nobody waits, and what the dead had is used again.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <functional>
#include <thread>

#include "mapped.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kForks = false;  // ThreadSanitizer does not follow a fork
#else
constexpr bool kForks = true;
#endif

using namespace mapped;

namespace {

// Runs `body` in a child, which must not return.
pid_t in_child(const std::function<void()> &body) {
    const pid_t child = fork();
    if (child != 0) return child;
    body();
    _exit(0);
}

// Every valid cell of what was read is that of `seed`, every row's tag too.
void expect_whole(Process &process, uint64_t seed) {
    const Shape &shape = process.shape();
    const Block &read = process.read_rows();
    const auto rows = static_cast<uint32_t>(read.tags.size());
    const Block all = block_of(shape, rows, process.generation, seed);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t l = 0; l < shape.layers; l++)
            if (Shape::valid(read.validity.data() + r * shape.validity_bytes, l)) {
                ASSERT_EQ(std::memcmp(&read.ids[r * shape.ids_bytes + l * shape.cell_bytes],
                                      &all.ids[r * shape.ids_bytes + l * shape.cell_bytes],
                                      shape.cell_bytes),
                          0);
                ASSERT_EQ(read.tags[r], all.tags[r]);
            }
}

// Nobody who is dead holds anything: as many blocks as it has room for are published and
// found.
void expect_all_room(Process &process, uint32_t blocks, uint64_t first_key) {
    process.blocks().usage();  // looks for the dead, as every thousandth claim does
    for (uint64_t k = 0; k < blocks; k++)
        ASSERT_EQ(process.publish(first_key + k, first_key + k), Published::stored);
    for (uint64_t k = 0; k < blocks; k++)
        ASSERT_TRUE(process.has(first_key + k, first_key + k)) << k;
    ASSERT_EQ(process.blocks().usage().blocks, blocks);
    ASSERT_EQ(process.blocks().usage().retained, 0u);
    ASSERT_EQ(process.counted(MappedCount::damaged), 0u);
}

constexpr uint64_t kKeys = 40;

// Calls of all kinds, without end. A content key has the rows of its number; a slot key has those
// of its number and of which use it is.
[[noreturn]] void do_everything(const Options &o, Descriptor &descriptor, uint32_t seed) {
    Process process(o, descriptor);
    if (process.status != ROUTECAP_OK) _exit(3);
    std::mt19937 random(seed);
    for (;;) {
        const uint64_t key = random() % kKeys;
        switch (random() % 12) {
            case 0: process.evict(key); break;
            case 1:
            case 2: process.retain(key); break;
            case 3: process.release(key); break;
            case 4:
            case 5: process.read(key); break;
            case 6:
            case 7: {
                const uint64_t seed = o.slot_keys ? 7 : key;
                process.publish_many({key, (key + 1) % kKeys, (key + 2) % kKeys},
                                     {seed, o.slot_keys ? 7 : (key + 1) % kKeys,
                                      o.slot_keys ? 7 : (key + 2) % kKeys});
                break;
            }
            default: process.publish(key, o.slot_keys ? 7 : key, random() % 4 * (random() % 999));
        }
    }
}

TEST(Killed, at_hundreds_of_random_points_leaves_whole_blocks_and_nobody_waiting) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    std::mt19937 random(1);
    for (const bool slot_keys : {false, true}) {
        const Options o{.block_rows = 3, .key_bytes = 8, .slot_keys = slot_keys, .blocks = 24};
        Descriptor descriptor;
        Process parent(o, descriptor);
        ASSERT_EQ(parent.status, ROUTECAP_OK);
        for (uint32_t round = 0; round < 200; round++) {
            std::vector<pid_t> children;
            for (uint32_t c = 0; c < 2; c++)
                children.push_back(in_child([&] { do_everything(o, descriptor, 2 * round + c); }));
            for (const pid_t child : children) {
                // From the first instructions of opening on.
                usleep(random() % 2000);
                ASSERT_EQ(kill(child, SIGKILL), 0);
                int status;
                ASSERT_EQ(waitpid(child, &status, 0), child);
                ASSERT_TRUE(WIFSIGNALED(status)) << status;
            }
            for (uint64_t k = 0; k < kKeys + 1; k++)
                if (parent.read(k) == 0) expect_whole(parent, slot_keys ? 7 : k);
            ASSERT_NO_FATAL_FAILURE(expect_all_room(parent, o.blocks, 1000 + round * 100));
        }
    }
}

// Steps a child through one call, instruction by instruction, and kills it after the n-th: after
// some 20 numbers of each call, 8 where a sanitizer makes instructions many times as many, or with
// ROUTECAP_EVERY_INSTRUCTION in the environment after all.
TEST(Killed, at_every_stage_of_every_call) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    struct Call {
        const char *name;
        bool slot_keys, full;
        std::function<void(Process &)> call;
    };
    const Call calls[] = {
        {"publish", false, false, [](Process &p) { p.publish(9, 9); }},
        {"publish for which another goes", false, true, [](Process &p) { p.publish(9, 9); }},
        {"publish several", false, false,
         [](Process &p) {
             p.publish_many({7, 8, 9}, {7, 8, 9});
         }},
        {"publish several for which others go", false, true,
         [](Process &p) {
             p.publish_many({7, 8, 9}, {7, 8, 9});
         }},
        {"replace several", true, false,
         [](Process &p) {
             p.publish_many({1, 2, 3}, {1, 2, 3});
         }},
        {"fill", false, false, [](Process &p) { p.publish(3, 3); }},
        {"replace", true, false, [](Process &p) { p.publish(3, 3); }},
        {"retain", false, false, [](Process &p) { p.retain(2); }},
        {"release", false, false, [](Process &p) { p.release(4); }},
        {"evict", false, false, [](Process &p) { p.evict(2); }},
        {"leave", false, false, [](Process &p) { p.end(); }},
    };
    const bool all = std::getenv("ROUTECAP_EVERY_INSTRUCTION") != nullptr;
#if defined(__SANITIZE_ADDRESS__)
    constexpr uint64_t kPoints = 8;
#else
    constexpr uint64_t kPoints = 20;
#endif
    std::mt19937 random(1);
    for (const Call &call : calls) {
        SCOPED_TRACE(call.name);
        const Options o = small(call.slot_keys, 5);
        // The first run is to the end, and says how many instructions there are.
        uint64_t instructions = 0;
        for (uint64_t point = 0; point <= (all ? instructions : kPoints); point++) {
            const uint64_t steps = point == 0 ? UINT64_MAX
                                   : all      ? point
                                              : 1 + random() % instructions;
            Descriptor descriptor;
            Process parent(o, descriptor);
            for (uint64_t k = 1; k <= (call.full ? 5u : 4u); k++)
                parent.publish(k, k, k == 3 ? 5 : 0);
            const pid_t child = in_child([&] {
                Process process(o, descriptor);
                process.retain(4);
                if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(4);
                raise(SIGSTOP);
                call.call(process);
                raise(SIGSTOP);
                _exit(5);
            });
            int status;
            ASSERT_EQ(waitpid(child, &status, 0), child);
            if (WIFEXITED(status)) GTEST_SKIP() << "this process may not trace another";
            uint64_t i = 0;
            for (bool ended = false; i < steps && !ended; i++) {
                ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr), 0);
                ASSERT_EQ(waitpid(child, &status, 0), child);
                ended = WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
            }
            if (point == 0) instructions = i;
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            for (uint64_t k = 1; k <= 10; k++) {
                if (parent.read(k) != 0) continue;
                ASSERT_NO_FATAL_FAILURE(expect_whole(parent, k)) << steps << " " << k;
            }
            ASSERT_NO_FATAL_FAILURE(expect_all_room(parent, o.blocks, 1000)) << steps;
        }
    }
}

// A child that is stopped before it publishes, and goes on by single instructions.
class Stopped {
public:
    Stopped(const Options &o, Descriptor &descriptor, const std::vector<uint64_t> &keys,
            const std::vector<uint64_t> &seeds, uint64_t missing = 0) {
        child_ = in_child([&] {
            Process process(o, descriptor);
            process.ready = [] {
                if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(4);
                raise(SIGSTOP);
            };
            process.publish_many(keys, seeds, missing);
            raise(SIGSTOP);
            _exit(5);
        });
        waitpid(child_, &status_, 0);
    }
    Stopped(const Stopped &) = delete;
    Stopped &operator=(const Stopped &) = delete;
    ~Stopped() {
        kill(child_, SIGKILL);
        waitpid(child_, &status_, 0);
    }
    bool traced() const { return WIFSTOPPED(status_); }
    // False: the call has ended before.
    bool step(uint64_t instructions) {
        for (uint64_t i = 0; i < instructions && !ended_; i++) go_on(PTRACE_SINGLESTEP);
        return !ended_;
    }
    bool step_until(const std::function<bool()> &there) {
        while (!ended_ && !there()) go_on(PTRACE_SINGLESTEP);
        return !ended_;
    }
    void finish() {
        while (!ended_) go_on(PTRACE_CONT);
    }
    // How many instructions the call takes, of which `points` are looked at.
    uint64_t every(uint64_t points) {
        uint64_t all = 0;
        while (step(1)) all++;
        return all / points;
    }

private:
    void go_on(__ptrace_request how) {
        ptrace(how, child_, nullptr, nullptr);
        waitpid(child_, &status_, 0);
        ended_ = !WIFSTOPPED(status_) || WSTOPSIG(status_) == SIGSTOP;
    }

    pid_t child_;
    int status_ = 0;
    bool ended_ = false;
};

const Options kSmallSlots = small(true, 5);

// Whether somebody has the writer's lock of a table.
class WriterLock {
public:
    explicit WriterLock(Descriptor &table)
        : own_(::open(("/proc/self/fd/" + std::to_string(table.get())).c_str(), O_RDWR)) {}
    bool taken() {
        struct flock lock {};
        lock.l_type = F_WRLCK;
        lock.l_start = (off_t{1} << 62) + MappedFile::kLocks + 1;
        lock.l_len = 1;
        EXPECT_EQ(fcntl(own_.get(), F_OFD_GETLK, &lock), 0);
        return lock.l_type != F_UNLCK;
    }

private:
    Descriptor own_;
};

// Readers and droppers need no lock; who needs it returns, and says so.
TEST(Interrupted, with_the_lock_a_writer_holds_up_nobody_and_what_is_dropped_meanwhile_is_gone) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    const Options o = small(true, 8);
    for (uint64_t steps = 0, more = true; more; steps += 400) {
        Descriptor descriptor;
        Process parent(o, descriptor);
        WriterLock lock(descriptor);
        for (uint64_t k = 1; k <= 6; k++) parent.publish(k, k);
        ASSERT_EQ(parent.retain(6), 0);
        Stopped a(o, descriptor, {1, 7}, {10, 7});
        if (!a.traced()) GTEST_SKIP() << "this process may not trace another";
        ASSERT_TRUE(a.step_until([&] { return lock.taken(); }));
        more = a.step(steps) && lock.taken();
        if (!more) break;
        EXPECT_TRUE(parent.has(2, 2));
        EXPECT_EQ(parent.publish(5, 50), Published::refused);
        EXPECT_EQ(parent.publish(5, 50), Published::refused);  // which does not wait again
        EXPECT_TRUE(parent.evict(2));
        EXPECT_EQ(parent.read(2), kEvicted);
        EXPECT_EQ(parent.retain(5), ROUTECAP_MISSING_REFUSED);
        parent.release(6);
        a.finish();
        EXPECT_TRUE(parent.has(1, 10));
        EXPECT_TRUE(parent.has(7, 7));
        EXPECT_EQ(parent.publish(5, 50), Published::stored);
        EXPECT_TRUE(parent.has(5, 50));
        EXPECT_EQ(parent.blocks().usage().retained, 0u);
        ASSERT_NO_FATAL_FAILURE(expect_all_room(parent, o.blocks, 1000)) << steps;
    }
}

TEST(Interrupted, the_last_of_one_slot_key_in_a_call_stays_whoever_evicts_meanwhile) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    uint64_t every = 0;
    for (uint64_t steps = 0, more = true; more; steps += every) {
        Descriptor descriptor;
        Process parent(kSmallSlots, descriptor);
        parent.publish(1, 1);
        Stopped a(kSmallSlots, descriptor, {1, 2, 1}, {10, 2, 11});
        if (!a.traced()) GTEST_SKIP() << "this process may not trace another";
        if (every == 0) {
            every = a.every(100);
            continue;
        }
        // As long as nothing was written.
        more = a.step(steps) && parent.has(1, 1) && parent.find(2) != 0;
        parent.evict(1);
        a.finish();
        if (more) {
            ASSERT_TRUE(parent.has(1, 11)) << steps;
        }
    }
}

TEST(Interrupted, a_publish_from_before_an_advance_takes_no_block_from_after_it) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    for (const bool slot_keys : {false, true})
        for (const bool there : {false, true}) {
            Options o = kSmallSlots;
            o.slot_keys = slot_keys;
            uint64_t every = 0;
            for (uint64_t steps = 0, more = true; more; steps += every) {
                Descriptor descriptor;
                Process parent(o, descriptor);
                WriterLock lock(descriptor);
                if (there) parent.publish(1, 1, 3);
                Stopped a(o, descriptor, {1}, {1});
                if (!a.traced()) GTEST_SKIP() << "this process may not trace another";
                if (every == 0) {
                    every = a.every(15);
                    continue;
                }
                more = a.step(steps);
                parent.advance(parent.generation = 2);
                EXPECT_NE(parent.find(1), 0);
                if (lock.taken()) a.finish();
                EXPECT_EQ(parent.publish(1, 20), Published::stored);
                EXPECT_EQ(parent.retain(1), 0);
                a.finish();
                ASSERT_TRUE(parent.has(1, 20)) << slot_keys << there << " " << steps;
                ASSERT_EQ(parent.blocks().usage().retained, 1u);
            }
        }
}

TEST(Locks, a_child_of_fork_does_not_keep_its_parent_alive) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    const Options o{.blocks = 4};
    Descriptor descriptor;
    Process here(o, descriptor);
    for (uint64_t k = 1; k <= 4; k++) here.publish(k, k);
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const pid_t middle = in_child([&] {
        Process process(o, descriptor);
        for (uint64_t k = 1; k <= 4; k++) process.retain(k);
        in_child([&] {
            const pid_t me = getpid();
            if (write(pipes[1], &me, sizeof me) == sizeof me) sleep(30);
        });
        sleep(30);
    });
    pid_t inner;
    ASSERT_EQ(::read(pipes[0], &inner, sizeof inner), static_cast<ssize_t>(sizeof inner));
    EXPECT_EQ(here.publish(5, 5), Published::refused);
    kill(middle, SIGKILL);
    int status;
    waitpid(middle, &status, 0);
    EXPECT_EQ(here.publish(5, 5), Published::stored);
    kill(inner, SIGKILL);
    close(pipes[0]);
    close(pipes[1]);
}

// While there is one, its thread stops for some time between two instructions, at random: as on a
// machine with more threads than cores, but far more often.
class Interrupted {
public:
    explicit Interrupted(uint32_t seed) {
        state_ = 2654435769u * (seed + 1);
        struct sigaction action {};
        action.sa_handler = [](int) {
            const int error = errno;
            const timespec stop{0, random()};
            nanosleep(&stop, nullptr);
            arm();
            errno = error;
        };
        action.sa_flags = SA_RESTART;
        sigaction(SIGUSR1, &action, nullptr);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGUSR1;
        event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
        if (timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) std::abort();
        arm();
    }
    Interrupted(const Interrupted &) = delete;
    Interrupted &operator=(const Interrupted &) = delete;
    ~Interrupted() { timer_delete(timer_); }

private:
    static long random() {  // up to 131 us
        state_ = state_ * 1664525u + 1013904223u;
        return static_cast<long>(state_ >> 15);
    }
    static void arm() {
        const itimerspec once{{0, 0}, {0, 1000 + random()}};
        timer_settime(timer_, 0, &once, nullptr);
    }
    static thread_local uint32_t state_;
    static thread_local timer_t timer_;
};
thread_local uint32_t Interrupted::state_;
thread_local timer_t Interrupted::timer_;

// Each thread has an object of its own, with a lock of its own, and is a process to the others.
TEST(AtOnce, every_read_of_a_slot_is_of_a_use_between_the_last_complete_and_the_last_begun) {
    const Options o = small(true, 64);
    constexpr uint32_t kWriters = 2, kReaders = 2, kSlots = 16;
    Descriptor descriptor;
    Process first(o, descriptor);
    struct Uses {
        std::atomic<uint64_t> begun{0}, complete{0};
    };
    std::vector<Uses> uses(kSlots);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> reads{0};
    std::vector<std::thread> threads;
    const auto seed_of = [](uint64_t key, uint64_t use) { return key * 100000000 + use; };
    for (uint32_t w = 0; w < kWriters; w++)
        threads.emplace_back([&, w] {
            Process process(o, descriptor);
            std::mt19937 random(w);
            const Interrupted interrupted(w);
            while (!stop) {
                const uint64_t key = random() % (kSlots / kWriters) * kWriters + w;
                const uint64_t use = uses[key].begun.load() + 1;
                uses[key].begun = use;
                ASSERT_EQ(process.publish(key, seed_of(key, use)), Published::stored);
                uses[key].complete = use;
            }
        });
    for (uint32_t r = 0; r < kReaders; r++)
        threads.emplace_back([&, r] {
            Process process(o, descriptor);
            std::mt19937 random(100 + r);
            const Interrupted interrupted(100 + r);
            while (!stop) {
                const uint64_t key = random() % kSlots;
                const uint64_t complete = uses[key].complete;
                const int32_t reason = process.read(key);
                const uint64_t begun = uses[key].begun;
                reads++;
                // A slot that is taken again between finding and copying is another's.
                if (reason != 0) {
                    ASSERT_TRUE(complete == 0 || begun > complete) << reason;
                    continue;
                }
                bool known = false;
                for (uint64_t use = complete; use <= begun && !known; use++)
                    known = process.read_rows() ==
                            block_of(process.shape(), 2, process.generation, seed_of(key, use));
                ASSERT_TRUE(known) << key << " " << complete << " " << begun;
            }
        });
    run_until([&] { return reads >= 100000; });
    stop = true;
    for (std::thread &t : threads) t.join();
    EXPECT_GE(reads, 100000u);
    EXPECT_EQ(first.counted(MappedCount::evicted), 0u);
    EXPECT_EQ(first.counted(MappedCount::damaged), 0u);
    EXPECT_EQ(first.blocks().usage().blocks, kSlots);
}

TEST(AtOnce, content_that_all_publish_evict_fill_and_retain_is_never_of_another_key) {
    const Options o = small(false, 24);
    constexpr uint32_t kThreads = 4;
    Descriptor descriptor;
    Process first(o, descriptor);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> reads{0};
    std::atomic<uint64_t> generation{1};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            Process process(o, descriptor);
            std::mt19937 random(t);
            const Interrupted interrupted(t);
            std::vector<uint64_t> retained;
            const auto seed_of = [](uint64_t key, uint64_t g) { return key + 1000 * g; };
            while (!stop) {
                process.generation = generation;
                const uint64_t key = random() % kKeys;
                switch (random() % 12) {
                    case 0: process.evict(key); break;
                    case 1:
                        if (retained.size() < 4 && process.retain(key) == 0)
                            retained.push_back(key);
                        break;
                    case 2:
                        if (retained.empty()) break;
                        process.release(retained.back());
                        retained.pop_back();
                        break;
                    case 3:
                        if (random() % 100 == 0) process.advance(++generation);
                        break;
                    case 4:
                    case 5:
                    case 6:
                    case 7:
                        if (process.read(key) != 0) break;
                        ASSERT_NO_FATAL_FAILURE(
                            expect_whole(process, seed_of(key, process.generation)));
                        reads++;
                        break;
                    default:
                        process.publish(key, seed_of(key, process.generation), random() % 16);
                        ASSERT_FALSE(process.mismatched);
                }
            }
            for (const uint64_t key : retained) process.release(key);
        });
    run_until([&] { return reads >= 20000; });
    stop = true;
    for (std::thread &t : threads) t.join();
    EXPECT_GE(reads, 20000u);
    first.generation = generation;
    expect_all_room(first, o.blocks, 1000);
}

TEST(AtOnce, keys_that_two_publish_have_one_block_each) {
    for (const bool slot_keys : {false, true}) {
        const Options o{.layers = 2,
                        .k = 2,
                        .experts = 20,
                        .block_rows = 1,
                        .key_bytes = 8,
                        .slot_keys = slot_keys,
                        .blocks = 200};
        constexpr uint64_t kAll = 48;
        Descriptor descriptor;
        Process first(o, descriptor);
        std::vector<std::unique_ptr<Process>> processes;
        for (int t = 0; t < 2; t++) processes.push_back(std::make_unique<Process>(o, descriptor));
        std::atomic<uint32_t> ready{0};
        const auto meet = [&](uint32_t round) {  // spinning, so that both go on at once
            ready++;
            while (ready < 2 * round && !testing::Test::HasFailure()) {}
        };
        constexpr uint32_t kRounds = 100;
        std::vector<std::thread> threads;
        for (uint32_t t = 0; t < 2; t++)
            threads.emplace_back([&, t] {
                std::mt19937 random(t);
                const Interrupted interrupted(t);
                std::vector<uint64_t> keys(16);
                for (uint32_t round = 0; round < kRounds; round++) {
                    meet(2 * round + 1);
                    for (uint64_t key = 0; key < kAll; key += 16) {
                        for (uint64_t i = 0; i < 16; i++) keys[i] = key + (t == 0 ? i : 15 - i);
                        for (const Published result : processes[t]->publish_many(keys, keys))
                            ASSERT_TRUE(result == Published::stored ||
                                        result == Published::repeated);
                    }
                    meet(2 * round + 2);
                    if (t != 0) continue;
                    for (uint64_t key = 0; key < kAll; key++) ASSERT_TRUE(first.has(key, key));
                    ASSERT_EQ(first.blocks().usage().blocks, kAll);
                    for (uint64_t key = 0; key < kAll; key++) ASSERT_TRUE(first.evict(key));
                }
            });
        for (std::thread &t : threads) t.join();
        EXPECT_EQ(first.blocks().usage().blocks, 0u);
        expect_all_room(first, o.blocks, 1000);
    }
}

TEST(AtOnce, what_is_retained_is_there_until_it_is_released) {
    const Options o = small(false, 16);
    Descriptor descriptor;
    Process first(o, descriptor);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> held{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 2; t++)
        threads.emplace_back([&, t] {
            Process process(o, descriptor);
            std::mt19937 random(t);
            const Interrupted interrupted(t);
            std::deque<uint64_t> retained;
            while (!stop) {
                const uint64_t key = random() % kKeys;
                if (process.retain(key) != 0) continue;
                retained.push_back(key);
                for (int i = 0; i < 20; i++)
                    for (const uint64_t k : retained) ASSERT_EQ(process.read(k), 0) << k;
                if (retained.size() < 3) continue;
                process.release(retained.front());
                retained.pop_front();
                held++;
            }
        });
    for (uint32_t t = 0; t < 2; t++)
        threads.emplace_back([&, t] {
            Process process(o, descriptor);
            std::mt19937 random(10 + t);
            const Interrupted interrupted(10 + t);
            while (!stop) {
                const uint64_t key = random() % kKeys;
                process.publish(key, key, random() % 4);
            }
        });
    run_until([&] { return held >= 1000; });
    stop = true;
    for (std::thread &t : threads) t.join();
    EXPECT_GE(held, 1000u);
    expect_all_room(first, o.blocks, 1000);
}

}  // namespace
