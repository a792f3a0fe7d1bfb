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

// Nobody who is dead holds anything: as many blocks as it has room for are published and found.
void expect_all_room(Process &process, uint32_t blocks, uint64_t first_key) {
    // What is there goes first. Without it, which block goes depends on which were used.
    process.advance(++process.generation);
    for (uint64_t k = 0; k < blocks; k++)
        ASSERT_EQ(process.publish(first_key + k, first_key + k), MappedCount::published);
    for (uint64_t k = 0; k < blocks; k++)
        ASSERT_TRUE(process.has(first_key + k, first_key + k)) << k;
    ASSERT_EQ(process.blocks().usage().blocks, blocks);
    ASSERT_EQ(process.counted(MappedCount::damaged), 0u);
}

constexpr uint64_t kKeys = 40;

// Calls of all kinds, without end. A key has the rows of its number.
[[noreturn]] void do_everything(const Options &o, Descriptor &descriptor, uint32_t seed) {
    Process process(o, descriptor);
    if (process.status != ROUTECAP_OK) _exit(3);
    std::mt19937 random(seed);
    for (;;) {
        const uint64_t key = random() % kKeys, next = (key + 1) % kKeys, third = (key + 2) % kKeys;
        switch (random() % 9) {
            case 0: process.evict(key); break;
            case 1:
            case 2: process.read(key); break;
            case 3:
            case 4: process.publish_many({key, next, third}, {key, next, third}); break;
            default: process.publish(key, key, random() % 4 * (random() % 999));
        }
    }
}

TEST(Killed, at_hundreds_of_random_points_leaves_whole_blocks_and_nobody_waiting) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    std::mt19937 random(1);
    const Options o{.block_rows = 3, .key_bytes = 8, .blocks = 24};
    Descriptor descriptor;
    Process parent(o, descriptor);
    ASSERT_EQ(parent.status, ROUTECAP_OK);
    for (uint32_t round = 0; round < 400; round++) {
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
            if (parent.read(k) == 0) expect_whole(parent, k);
        ASSERT_NO_FATAL_FAILURE(expect_all_room(parent, o.blocks, 1000 + round * 100));
    }
}

// Steps a child through one call, instruction by instruction, and kills it after the n-th: after
// some 20 numbers of each call, 8 where a sanitizer makes instructions many times as many, or with
// ROUTECAP_EVERY_INSTRUCTION in the environment after all.
TEST(Killed, at_every_stage_of_every_call) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    struct Call {
        const char *name;
        bool full;
        std::function<void(Process &)> call;
    };
    const Call calls[] = {
        {"publish", false, [](Process &p) { p.publish(9, 9); }},
        {"publish for which another goes", true, [](Process &p) { p.publish(9, 9); }},
        {"publish several", false,
         [](Process &p) {
             p.publish_many({7, 8, 9}, {7, 8, 9});
         }},
        {"publish several for which others go", true,
         [](Process &p) {
             p.publish_many({7, 8, 9}, {7, 8, 9});
         }},
        {"fill", false, [](Process &p) { p.publish(3, 3); }},
        {"fill what is full", true, [](Process &p) { p.publish(3, 3); }},
        {"read", false, [](Process &p) { p.read(2); }},
        {"evict", false, [](Process &p) { p.evict(2); }},
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
        const Options o = small(5);
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

// Whether somebody has the writer's lock of a table.
class WriterLock {
public:
    explicit WriterLock(Descriptor &table)
        : own_(::open(("/proc/self/fd/" + std::to_string(table.get())).c_str(), O_RDWR)) {}
    bool taken() {
        struct flock lock {};
        lock.l_type = F_WRLCK;
        lock.l_start = (off_t{1} << 62) + MappedFile::kWriter;
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
    const Options o = small(8);
    for (uint64_t steps = 0, more = true; more; steps += 400) {
        Descriptor descriptor;
        Process parent(o, descriptor);
        WriterLock lock(descriptor);
        for (uint64_t k = 1; k <= 6; k++) parent.publish(k, k, k == 1 ? 5 : 0);
        Stopped a(o, descriptor, {1, 7}, {1, 7});
        if (!a.traced()) GTEST_SKIP() << "this process may not trace another";
        ASSERT_TRUE(a.step_until([&] { return lock.taken(); }));
        more = a.step(steps) && lock.taken();
        if (!more) break;
        EXPECT_TRUE(parent.has(2, 2));
        EXPECT_EQ(parent.publish(8, 8), MappedCount::refused);
        EXPECT_EQ(parent.publish(8, 8), MappedCount::refused);  // which does not wait again
        EXPECT_TRUE(parent.evict(2));
        EXPECT_EQ(parent.read(2), kEvicted);
        a.finish();
        EXPECT_TRUE(parent.has(1, 1));
        EXPECT_TRUE(parent.has(7, 7));
        EXPECT_EQ(parent.publish(8, 8), MappedCount::published);
        EXPECT_TRUE(parent.has(8, 8));
        ASSERT_NO_FATAL_FAILURE(expect_all_room(parent, o.blocks, 1000)) << steps;
    }
}

TEST(Interrupted, a_publish_from_before_an_advance_takes_no_block_from_after_it) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    const Options o = small(5);
    for (const bool there : {false, true}) {
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
            EXPECT_EQ(parent.publish(1, 20), MappedCount::published);
            a.finish();
            ASSERT_TRUE(parent.has(1, 20)) << there << " " << steps;
        }
    }
}

TEST(Locks, a_child_of_fork_does_not_keep_its_parents) {
    if (!kForks) GTEST_SKIP() << "no forks under ThreadSanitizer";
    const Options o{.blocks = 4};
    Descriptor descriptor;
    Process here(o, descriptor);
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const pid_t middle = in_child([&] {
        Process process(o, descriptor);
        process.blocks().change([&](const MappedBlocks::Writer &) {
            in_child([&] {
                const pid_t me = getpid();
                if (write(pipes[1], &me, sizeof me) == sizeof me) sleep(30);
            });
            sleep(30);
        });
    });
    pid_t inner;
    ASSERT_EQ(::read(pipes[0], &inner, sizeof inner), static_cast<ssize_t>(sizeof inner));
    EXPECT_EQ(here.publish(5, 5), MappedCount::refused);
    kill(middle, SIGKILL);
    int status;
    waitpid(middle, &status, 0);
    EXPECT_EQ(here.publish(5, 5), MappedCount::published);
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
// A block comes with one cell and gets one cell after another, until it is dropped.
TEST(AtOnce, every_read_is_of_a_state_between_the_last_complete_and_the_last_begun) {
    const Options o = small(64);
    constexpr uint32_t kWriters = 2, kReaders = 2, kBlocks = 16;
    constexpr uint64_t kStates = 5, kMissing[kStates] = {15, 14, 12, 8, 0};  // the first: none
    Descriptor descriptor;
    Process first(o, descriptor);
    struct States {
        std::atomic<uint64_t> begun{0}, complete{0};
    };
    std::vector<States> states(kBlocks);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> reads{0};
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < kWriters; w++)
        threads.emplace_back([&, w] {
            Process process(o, descriptor);
            std::mt19937 random(w);
            const Interrupted interrupted(w);
            while (!stop) {
                const uint64_t key = random() % (kBlocks / kWriters) * kWriters + w;
                const uint64_t next = states[key].begun.load() + 1;
                states[key].begun = next;
                if (next % kStates == 0)
                    ASSERT_TRUE(process.evict(key));
                else
                    ASSERT_EQ(process.publish(key, key, kMissing[next % kStates]),
                              MappedCount::published);
                states[key].complete = next;
            }
        });
    for (uint32_t r = 0; r < kReaders; r++)
        threads.emplace_back([&, r] {
            Process process(o, descriptor);
            std::mt19937 random(100 + r);
            const Interrupted interrupted(100 + r);
            while (!stop) {
                const uint64_t key = random() % kBlocks;
                const uint64_t complete = states[key].complete;
                const int32_t reason = process.read(key);
                const uint64_t begun = states[key].begun;
                reads++;
                bool known = false;
                for (uint64_t s = complete; s <= begun && !known; s++)
                    known = s % kStates == 0 ? reason != 0
                                             : reason == 0 && process.read_rows() ==
                                                                  block_of(process.shape(), 2,
                                                                           process.generation, key,
                                                                           kMissing[s % kStates]);
                ASSERT_TRUE(known) << key << " " << reason << " " << complete << " " << begun;
            }
        });
    run_until([&] { return reads >= 100000; });
    stop = true;
    for (std::thread &t : threads) t.join();
    EXPECT_GE(reads, 100000u);
    EXPECT_EQ(first.counted(MappedCount::damaged), 0u);
}

TEST(AtOnce, content_that_all_publish_evict_and_fill_is_never_of_another_key) {
    const Options o = small(24);
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
            const auto seed_of = [](uint64_t key, uint64_t g) { return key + 1000 * g; };
            while (!stop) {
                process.generation = generation;
                const uint64_t key = random() % kKeys;
                switch (random() % 10) {
                    case 0: process.evict(key); break;
                    case 1:
                        if (random() % 100 == 0) process.advance(++generation);
                        break;
                    case 2:
                    case 3:
                    case 4:
                    case 5:
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
        });
    run_until([&] { return reads >= 20000; });
    stop = true;
    for (std::thread &t : threads) t.join();
    EXPECT_GE(reads, 20000u);
    first.generation = generation;
    expect_all_room(first, o.blocks, 1000);
}

TEST(AtOnce, keys_that_two_publish_have_one_block_each) {
    const Options o{
        .layers = 2, .k = 2, .experts = 20, .block_rows = 1, .key_bytes = 8, .blocks = 200};
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
                    for (const MappedCount result : processes[t]->publish_many(keys, keys))
                        ASSERT_TRUE(result == MappedCount::published ||
                                    result == MappedCount::repeated);
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

}  // namespace
