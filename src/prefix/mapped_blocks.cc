#include "prefix/mapped_blocks.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>

#include "base/status.h"
#include "prefix/row_merge.h"
#include "routing/import.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"  // which does not know fences; every access here is atomic
#endif

namespace routecap {
namespace {

constexpr char kMagic[8] = {'r', 'c', 's', 't', 'o', 'r', 'e', '\n'};
constexpr uint32_t kVersion = 8;
constexpr uint32_t kMostSlots = (1u << 27) - 1;
constexpr uint32_t kCells = 16;          // of the index, of which one is a key's
constexpr uint32_t kMostWalks = 64;      // of a reader, through cells that change
constexpr size_t kAtOnce = 16;           // keys for which memory is fetched side by side
constexpr size_t kCheckedBytes = 16384;  // of ids, which are still in the cache when checked

constexpr size_t align(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// ---- A slot's word: whether there is a block, number of the use, checksum
constexpr uint64_t kPublished = 1, kUse = 2, kUses = 0xfffffffe;
constexpr bool published(uint64_t word) { return (word & kPublished) != 0; }
constexpr uint64_t next_use(uint64_t word) { return (word + kUse) & kUses; }  // without a block
constexpr uint64_t published_word(uint64_t word, uint64_t sum) {
    return (word & kUses) | kPublished | sum << 32;
}
constexpr uint64_t sum_of(uint64_t word) { return word >> 32; }

// The checksum of a block, from that of its rows.
constexpr uint64_t block_sum(uint64_t rows, uint64_t key_hash, uint64_t generation) {
    const uint64_t all = rows ^ xxh64::avalanche(key_hash + generation * xxh64::kPrime1);
    return (all ^ all >> 32) & 0xffffffff;
}

// ---- A cell of the index: 5 bits of a hash, and a slot's number, from 1. 0: there is none.
constexpr uint32_t cell_of(uint64_t hash, uint32_t slot) {
    return static_cast<uint32_t>(hash >> 59) << 27 | (slot + 1);
}
constexpr uint32_t slot_in(uint32_t cell) { return (cell & kMostSlots) - 1; }
constexpr bool may_be_of(uint32_t cell, uint64_t hash) {
    return cell != 0 && cell >> 27 == hash >> 59;
}

// What identifies a boot of this machine. Empty if the system does not say.
std::array<char, 40> boot_id() {
    std::array<char, 40> id{};
    const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) return id;
    const ssize_t n = ::read(file, id.data(), 36);
    ::close(file);
    if (n != 36) id.fill(0);
    return id;
}

// The fixed part of the identity. The tables of the layers follow, then the checksum of it all.
struct Fixed {
    char magic[8];
    uint32_t version;
    uint32_t bytes;  // of the identity
    std::array<char, 40> boot;
    uint64_t file_bytes, seed;
    uint32_t slots, block_rows, key_bytes, layers, k;
    int32_t id_space;
};
struct LayerIdentity {
    int32_t decoder_index;
    uint32_t experts;
    int32_t provenance;
};

uint64_t checksum_of(const uint8_t *bytes, size_t n) {
    return checksum(n / 8, 0, [bytes](size_t i) {
        uint64_t word;
        std::memcpy(&word, bytes + 8 * i, 8);
        return word;
    });
}

}  // namespace

struct alignas(64) MappedBlocks::Control {
    MappedWord generation;
    alignas(64) MappedWord evictions;
    alignas(64) std::array<std::atomic<uint64_t>, static_cast<size_t>(MappedCount::end)> counts;
    MappedWord most_blocks;                  // that a call of usage() has seen
    alignas(64) std::atomic<uint32_t> hand;  // the slot that it took last
};

struct MappedBlocks::Slot {
    MappedWord word;
    MappedWord generation;          // the least tag of its rows
    MappedWord key[kMostKeyWords];  // as many as a key has words
};

// ---- Life -------------------------------------------------------------------------------------

MappedBlocks::MappedBlocks(const StoreConfig &config)
    : config_(config),
      key_words_(static_cast<uint32_t>(words_of(config.key_bytes))),
      ids_bytes_(size_t{config.block_rows} * config.shape->ids_bytes),
      validity_bytes_(size_t{config.block_rows} * config.shape->validity_bytes),
      slot_stride_(8 * (2 + size_t{key_words_})),
      rows_words_(words_of(ids_bytes_) + words_of(validity_bytes_) + config.block_rows) {
    scratch_.resize(rows_words_);
}

MappedBlocks::Layout MappedBlocks::layout(uint32_t slots) const {
    constexpr size_t kPage = 4096;
    Layout l{};
    const size_t identity = sizeof(Fixed) + config_.shape->layers * sizeof(LayerIdentity) + 16;
    l.control = align(identity, kPage);
    l.evictions = align(l.control + sizeof(Control), kPage);
    l.index = l.evictions + Evictions::kWords * 8;
    l.used = l.index + (size_t{4} * slots + kCells) * sizeof(Cell);
    l.slots = align(l.used + slots, 64);
    l.rows = align(l.slots + slots * slot_stride_, 64);
    l.bytes = align(l.rows + slots * rows_words_ * 8, kPage);
    return l;
}

std::vector<uint8_t> MappedBlocks::identity(uint32_t slots, uint64_t seed, uint64_t bytes) const {
    const Shape &shape = *config_.shape;
    const size_t tables = shape.layers * sizeof(LayerIdentity);
    std::vector<uint8_t> all(align(sizeof(Fixed) + tables, 8) + 8);
    Fixed fixed{};
    std::memcpy(fixed.magic, kMagic, sizeof kMagic);
    fixed.version = kVersion;
    fixed.bytes = static_cast<uint32_t>(all.size());
    fixed.boot = boot_id();
    fixed.file_bytes = bytes;
    fixed.seed = seed;
    fixed.slots = slots;
    fixed.block_rows = config_.block_rows;
    fixed.key_bytes = config_.key_bytes;
    fixed.layers = shape.layers;
    fixed.k = shape.k;
    fixed.id_space = shape.id_space;
    std::memcpy(all.data(), &fixed, sizeof fixed);
    for (uint32_t l = 0; l < shape.layers; l++) {
        const LayerIdentity layer{shape.layer_map[l], shape.layer_experts[l],
                                  shape.layer_provenance[l]};
        std::memcpy(all.data() + sizeof fixed + l * sizeof layer, &layer, sizeof layer);
    }
    const uint64_t sum = checksum_of(all.data(), all.size() - 8);
    std::memcpy(all.data() + all.size() - 8, &sum, 8);
    return all;
}

void MappedBlocks::place(uint32_t slots, uint64_t seed) {
    slots_ = slots;
    seed_ = seed;
    at_ = layout(slots);
    uint8_t *memory = file_.memory();
    control_ = reinterpret_cast<Control *>(memory + at_.control);
    evictions_.emplace(reinterpret_cast<MappedWord *>(memory + at_.evictions),
                       &control_->evictions);
}

uint64_t MappedBlocks::slot_bytes(const StoreConfig &config) {
    const MappedBlocks sizes(config);
    constexpr uint32_t kMany = 1u << 16;  // over which what is rounded is spread
    return (sizes.layout(2 * kMany).bytes - sizes.layout(kMany).bytes) / kMany;
}

// Makes a table in the memory of an empty file.
int32_t MappedBlocks::initialise(int32_t descriptor) {
    if (boot_id()[0] == 0)
        return report(ROUTECAP_ERR_NO_BACKEND, "the system does not say which boot this is");
    const uint64_t each = slot_bytes(config_);
    if (int32_t s = check_between("config", "budget_bytes", config_.budget_bytes, 2 * each,
                                  uint64_t{kMostSlots} * each);
        s < 0)
        return s;
    const auto slots = static_cast<uint32_t>(config_.budget_bytes / each);
    const size_t bytes = layout(slots).bytes;
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        return report(ROUTECAP_ERR_NO_BACKEND, "getrandom failed");
    const std::vector<uint8_t> identity = this->identity(slots, seed, bytes);
    if (int32_t s = file_.take(descriptor, bytes); s < 0) return s;
    place(slots, seed);
    control_->generation.store(config_.generation);
    control_->evictions.store(Evictions::kFirst);
    // What is not complete does not begin so.
    std::memcpy(file_.memory() + sizeof kMagic, identity.data() + sizeof kMagic,
                identity.size() - sizeof kMagic);
    uint64_t magic;
    static_assert(sizeof magic == sizeof kMagic);
    std::memcpy(&magic, kMagic, sizeof magic);
    reinterpret_cast<MappedWord *>(file_.memory())->store(magic, std::memory_order_release);
    return ROUTECAP_OK;
}

int32_t MappedBlocks::create(const StoreConfig &config, int32_t &descriptor,
                             std::unique_ptr<MappedBlocks> &blocks) {
    int32_t memory = -1;
    if (int32_t s = MappedFile::create(memory); s < 0) return s;
    int32_t status = open(config, memory, blocks);
    if (status == ROUTECAP_OK) status = MappedFile::seal(memory);
    if (status == ROUTECAP_OK) {
        descriptor = memory;
    } else {
        blocks.reset();
        ::close(memory);
    }
    return status;
}

int32_t MappedBlocks::open(const StoreConfig &config, int32_t descriptor,
                           std::unique_ptr<MappedBlocks> &blocks) {
    if (config.slot_keys())
        return report(ROUTECAP_ERR_ARGUMENT,
                      "config.flags: a shared store has no ROUTECAP_STORE_SLOT_KEYS");
    std::unique_ptr<MappedBlocks> made(new MappedBlocks(config));
    MappedFile &file = made->file_;
    MappedFile::Has has;
    if (int32_t s = file.begin(descriptor, has); s < 0) return s;
    if (has == MappedFile::Has::lock) {
        if (int32_t s = made->initialise(descriptor); s < 0) return s;
        file.made();
    } else {
        if (int32_t s = file.map(descriptor); s < 0) return s;
        if (int32_t s = made->check_identity(); s < 0) return s;
    }
    blocks = std::move(made);
    return ROUTECAP_OK;
}

int32_t MappedBlocks::check_identity() {
    const auto damaged = [](const char *how) {
        return report(ROUTECAP_ERR_FORMAT, "the descriptor is that of no store: %s", how);
    };
    // What is looked at is a copy, which nobody changes.
    Fixed fixed{};
    if (file_.bytes() < sizeof fixed) return damaged("too short");
    std::memcpy(&fixed, file_.memory(), sizeof fixed);
    if (std::memcmp(fixed.magic, kMagic, sizeof kMagic) != 0) return damaged("it begins otherwise");
    if (fixed.version != kVersion)
        return report(ROUTECAP_ERR_FORMAT, "the store has version %u; this library has %u",
                      fixed.version, kVersion);
    if (fixed.bytes < sizeof fixed + 8 || fixed.bytes % 8 != 0 || fixed.bytes > file_.bytes())
        return damaged("its header is damaged");
    std::vector<uint8_t> all(fixed.bytes);
    std::memcpy(all.data(), file_.memory(), all.size());
    std::atomic_thread_fence(std::memory_order_acquire);
    std::memcpy(&fixed, all.data(), sizeof fixed);
    uint64_t sum;
    std::memcpy(&sum, all.data() + all.size() - 8, 8);
    if (fixed.bytes != all.size() || sum != checksum_of(all.data(), all.size() - 8))
        return damaged("its header is damaged");
    if (fixed.boot != boot_id() || fixed.boot[0] == 0)
        return report(ROUTECAP_ERR_FORMAT, "the store was made before this boot of the machine");

    const Shape &shape = *config_.shape;
    struct Value {
        const char *name;
        int64_t has, wanted;
    };
    const auto first_difference = [](std::initializer_list<Value> values, const char *of) {
        for (const Value &v : values)
            if (v.has != v.wanted)
                return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the store's %s%s is %lld, and not %lld",
                              v.name, of, static_cast<long long>(v.has),
                              static_cast<long long>(v.wanted));
        return ROUTECAP_OK;
    };
    if (int32_t s = first_difference({{"number of layers", fixed.layers, shape.layers},
                                      {"k", fixed.k, shape.k},
                                      {"id space", fixed.id_space, shape.id_space},
                                      {"block_rows", fixed.block_rows, config_.block_rows},
                                      {"key_bytes", fixed.key_bytes, config_.key_bytes}},
                                     "");
        s < 0)
        return s;
    if (fixed.bytes != identity(fixed.slots, fixed.seed, fixed.file_bytes).size())
        return damaged("its header has another size");
    for (uint32_t l = 0; l < shape.layers; l++) {
        LayerIdentity layer;
        std::memcpy(&layer, all.data() + sizeof fixed + l * sizeof layer, sizeof layer);
        const std::string of = " of layer " + std::to_string(l);
        if (int32_t s =
                first_difference({{"layer_map", layer.decoder_index, shape.layer_map[l]},
                                  {"number of experts", layer.experts, shape.layer_experts[l]},
                                  {"provenance", layer.provenance, shape.layer_provenance[l]}},
                                 of.c_str());
            s < 0)
            return s;
    }
    if (fixed.slots < 2 || fixed.slots > kMostSlots || fixed.file_bytes != file_.bytes() ||
        layout(fixed.slots).bytes != fixed.file_bytes)
        return damaged("it has not the size that its header says");
    place(fixed.slots, fixed.seed);
    return ROUTECAP_OK;
}

uint64_t MappedBlocks::generation() const {
    // Whatever becomes of the word, it never goes back for this process.
    const uint64_t now = control_->generation.load(std::memory_order_acquire);
    uint64_t seen = seen_generation_.load(std::memory_order_relaxed);
    while (seen < now && !seen_generation_.compare_exchange_weak(seen, now)) {}
    return std::max(seen, now);
}

void MappedBlocks::advance(uint64_t generation) {
    uint64_t now = this->generation();
    while (now < generation && !control_->generation.compare_exchange_weak(now, generation)) {}
    this->generation();
}

// ---- Parts of the table -----------------------------------------------------------------------

MappedBlocks::Cell *MappedBlocks::cells(uint64_t hash) const {
    auto *const all = reinterpret_cast<Cell *>(file_.memory() + at_.index);
    return all + ((hash & 0xffffffff) * 4 * slots_ >> 32);
}
std::atomic<uint8_t> &MappedBlocks::used(uint32_t slot) const {
    return reinterpret_cast<std::atomic<uint8_t> *>(file_.memory() + at_.used)[slot];
}
MappedBlocks::Slot &MappedBlocks::slot(uint32_t number) const {
    return *reinterpret_cast<Slot *>(file_.memory() + at_.slots + number * slot_stride_);
}
MappedWord *MappedBlocks::rows(uint32_t slot) const {
    return reinterpret_cast<MappedWord *>(file_.memory() + at_.rows) + slot * rows_words_;
}
std::atomic<uint64_t> &MappedBlocks::counter(MappedCount what) const {
    return control_->counts[static_cast<size_t>(what)];
}

MappedBlocks::Key MappedBlocks::key_at(const uint8_t *keys, size_t i) const {
    Key key{};
    std::memcpy(key.words.data(), keys + i * config_.key_bytes, config_.key_bytes);
    key.hash = checksum(key_words_, seed_, [&](size_t w) { return key.words[w]; });
    return key;
}
uint64_t MappedBlocks::hash_in(uint32_t number) const {
    const MappedWord *const key = slot(number).key;
    return checksum(key_words_, seed_,
                    [key](size_t w) { return key[w].load(std::memory_order_relaxed); });
}
bool MappedBlocks::is_key(const Slot &s, const Key &key) const {
    for (uint32_t w = 0; w < key_words_; w++)
        if (s.key[w].load(std::memory_order_relaxed) != key.words[w]) return false;
    return true;
}

// ---- Finding ----------------------------------------------------------------------------------

std::optional<MappedBlocks::Found> MappedBlocks::look(const Key &key) const {
    const std::span<const Cell> cells(this->cells(key.hash), kCells);
    bool changed = true;
    for (uint32_t walk = 0; changed && walk < kMostWalks; walk++) {
        changed = false;
        for (const Cell &at : cells) {
            const uint32_t cell = at.load(std::memory_order_acquire);
            if (!may_be_of(cell, key.hash) || slot_in(cell) >= slots_) continue;
            const Slot &s = slot(slot_in(cell));
            const uint64_t word = s.word.load(std::memory_order_acquire);
            const bool same = is_key(s, key);
            const uint64_t generation = s.generation.load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (same && published(word) && s.word.load(std::memory_order_relaxed) == word)
                return Found{key.hash, word, slot_in(cell), 0, generation, false};
            changed |= at.load(std::memory_order_relaxed) != cell;
        }
    }
    return {};
}

int32_t MappedBlocks::reason_of_absence(uint64_t hash) const {
    return evictions_->has(hash) ? ROUTECAP_MISSING_EVICTED : ROUTECAP_MISSING_NOT_PUBLISHED;
}

void MappedBlocks::find(const uint8_t *keys, uint64_t generation, std::span<Found> found) const {
    const uint64_t now = this->generation();
    // Memory is fetched for many keys at once: first cells, then slots. In pairs the slots are
    // worth 25 % of looking up 2,048 (cold caches).
    Key at_once[kAtOnce];
    for (size_t first = 0; first < found.size(); first += kAtOnce) {
        const size_t n = std::min(kAtOnce, found.size() - first);
        for (size_t i = 0; i < n; i++) {
            at_once[i] = key_at(keys, first + i);
            __builtin_prefetch(cells(at_once[i].hash));
        }
        for (size_t i = 0; i < n; i++) {
            const uint32_t cell = cells(at_once[i].hash)->load(std::memory_order_relaxed);
            if (slot_in(cell) >= slots_) continue;
            const Slot &s = slot(slot_in(cell));
            __builtin_prefetch(&s);
            __builtin_prefetch(&s.key[key_words_ - 1]);  // which may be in the next line
        }
        for (size_t i = 0; i < n; i++) {
            const uint64_t hash = at_once[i].hash;
            const std::optional<Found> there = look(at_once[i]);
            Found &f = found[first + i];
            if (!there)
                f = {hash, 0, 0, reason_of_absence(hash), 0, false};
            else if (there->tag < now || generation != now)
                f = {hash, 0, 0, ROUTECAP_MISSING_STALE, 0, false};
            else
                f = *there;
        }
    }
    // What others have published since the store advanced is not for this caller.
    if (this->generation() != now) find(keys, generation, found);
}

// ---- Reading ----------------------------------------------------------------------------------

// Copies a block, if it is still the one that was found. `damaged`: it is, and its rows are not
// what was published.
bool MappedBlocks::copy_block(const Found &found, RowPlanes to, bool &damaged) const {
    damaged = false;
    const MappedWord &word = slot(found.slot).word;
    if (word.load(std::memory_order_acquire) != found.word) return false;
    const MappedWord *from = rows(found.slot);
    WordSum sum;
    copy_out(to.ids, from, ids_bytes_, sum);
    from += words_of(ids_bytes_);
    copy_out(to.validity, from, validity_bytes_, sum);
    from += words_of(validity_bytes_);
    copy_out(reinterpret_cast<uint8_t *>(to.tags), from, 8 * size_t{config_.block_rows}, sum);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (word.load(std::memory_order_relaxed) != found.word) return false;
    damaged = block_sum(sum.value(), found.hash, found.tag) != sum_of(found.word);
    return !damaged;
}

uint64_t MappedBlocks::least_tag(RowView rows) const {
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < config_.block_rows; r++) {
        const RowView row = rows.from(*config_.shape, r);
        if (*row.tags < least && !config_.shape->row_empty(row.validity)) least = *row.tags;
    }
    return least;
}

// Whether n rows are what a capturer would have made; and no cell of them is missing.
bool MappedBlocks::good_rows(RowPlanes rows, uint64_t n, bool &complete) const {
    const Shape &shape = *config_.shape;
    complete = true;
    for (uint64_t r = 0; r < n; r++) {
        const uint8_t *validity = rows.validity + r * shape.validity_bytes;
        complete &= shape.row_full(validity);
        if ((validity[shape.validity_bytes - 1] & ~shape.full.back()) != 0) return false;
    }
    routecap_segment segment{};
    segment.rows = n;
    segment.ids = rows.ids;
    segment.validity = complete ? nullptr : rows.validity;
    return ids_are_valid(shape, segment);
}

// Copies the block of a key that was found, or that has taken its place since.
bool MappedBlocks::read_block(const uint8_t *key, uint64_t generation, Found &found, RowPlanes to) {
    for (uint32_t walk = 0; found.reason == 0; walk++) {
        bool damaged;
        if (copy_block(found, to, damaged)) return true;
        if (damaged) discard_damaged(found);
        if (walk == kMostWalks)
            found.reason = ROUTECAP_MISSING_EVICTED;
        else
            find(key, generation, {&found, 1});
    }
    return false;
}

void MappedBlocks::mark_hole(RowPlanes rows, int32_t reason) const {
    std::memset(rows.validity, 0, validity_bytes_);
    std::fill_n(rows.tags, config_.block_rows, 0);
    for (uint64_t r = 0; r < config_.block_rows; r++)
        config_.shape->mark_missing(rows.ids + r * config_.shape->ids_bytes, reason);
}

void MappedBlocks::read(const uint8_t *keys, uint64_t generation, std::span<Found> found,
                        RowPlanes to) {
    const auto rows_at = [&](size_t i) { return to.from(*config_.shape, i * config_.block_rows); };
    const size_t group = std::max<size_t>(1, kCheckedBytes / ids_bytes_);
    for (size_t first = 0; first < found.size(); first += group) {
        const size_t end = std::min(found.size(), first + group);
        for (size_t i = first; i < end; i++)
            if (found[i].reason == 0) __builtin_prefetch(rows(found[i].slot));
        bool all = true, complete = false;
        for (size_t i = first; i < end; i++)
            all &= read_block(keys + i * config_.key_bytes, generation, found[i], rows_at(i));
        all = all && good_rows(rows_at(first), (end - first) * config_.block_rows, complete);
        for (size_t i = first; i < end; i++) {
            Found &f = found[i];
            if (f.reason == 0) used(f.slot).store(1, std::memory_order_relaxed);
            f.complete = all && complete;
            if (f.complete) continue;
            if (f.reason == 0 && !good_rows(rows_at(i), config_.block_rows, f.complete)) {
                discard_damaged(f);
                f.reason = reason_of_absence(f.hash);
            }
            if (f.reason != 0) mark_hole(rows_at(i), f.reason);
        }
    }
}

// ---- Dropping ---------------------------------------------------------------------------------

// Nobody finds a block any more, if it is still the one that was found.
bool MappedBlocks::drop(const Found &found) {
    uint64_t word = found.word;
    return slot(found.slot).word.compare_exchange_strong(word, next_use(word));
}

// A block went for room, or was dropped.
void MappedBlocks::note_eviction(uint64_t hash) {
    evictions_->add(hash);
    count(MappedCount::evicted, 1);
}

bool MappedBlocks::evict(const uint8_t *key_bytes, bool as_if) {
    const Key key = key_at(key_bytes, 0);
    bool there = as_if;
    // Its next one may come while this is on its way.
    for (uint32_t walk = 0; walk < kMostWalks; walk++) {
        const std::optional<Found> found = look(key);
        if (!found) break;
        there |= drop(*found);
    }
    if (there) note_eviction(key.hash);
    return there;
}

void MappedBlocks::discard_damaged(const Found &found) {
    if (!drop(found)) return;
    evictions_->add(found.hash);
    count(MappedCount::damaged, 1);
}

// ---- The lock ---------------------------------------------------------------------------------

bool MappedBlocks::lock() {
    using Clock = std::chrono::steady_clock;
    constexpr auto kTry = std::chrono::microseconds(50);
    constexpr auto kWait = std::chrono::seconds(1);
    const bool waits = !held_up_.load(std::memory_order_relaxed);
    Clock::time_point start;
    for (uint32_t times = 0;; times++) {
        if (mutex_.try_lock()) {
            if (file_.lock(MappedFile::kWriter)) break;
            mutex_.unlock();
        }
        const auto now = Clock::now();
        if (times == 0) start = now;
        if (now - start >= (waits ? Clock::duration(kWait) : Clock::duration(kTry))) {
            held_up_.store(true, std::memory_order_relaxed);
            return false;
        }
        if (waits && now - start >= kTry) std::this_thread::sleep_for(kTry);
    }
    held_up_.store(false, std::memory_order_relaxed);
    return true;
}

void MappedBlocks::unlock() {
    file_.unlock(MappedFile::kWriter);
    mutex_.unlock();
}

// ---- Publishing -------------------------------------------------------------------------------

// The hand's next slot, without a block and without a cell.
uint32_t MappedBlocks::take_slot() {
    constexpr uint32_t kNone = UINT32_MAX, kLook = 32;  // slots, for one without a block
    const uint64_t now = generation();
    uint32_t taken = kNone, number = control_->hand.load(std::memory_order_relaxed);
    for (uint32_t visits = 0; visits < kLook || taken == kNone; visits++) {
        number = number + 1 < slots_ ? number + 1 : 0;
        const Slot &s = slot(number);
        if (!published(s.word.load(std::memory_order_relaxed))) {
            taken = number;
            break;
        }
        if (taken == kNone &&
            (s.generation.load(std::memory_order_relaxed) < now ||
             used(number).exchange(0, std::memory_order_relaxed) == 0 || visits >= slots_))
            taken = number;
    }
    control_->hand.store(taken, std::memory_order_relaxed);
    const uint64_t hash = hash_in(taken);
    uint64_t word = slot(taken).word.load();
    if (published(word) && slot(taken).word.compare_exchange_strong(word, next_use(word)))
        note_eviction(hash);
    for (Cell &cell : std::span(cells(hash), kCells))
        if (cell.load(std::memory_order_relaxed) == cell_of(hash, taken))
            cell.store(0, std::memory_order_relaxed);
    return taken;
}

// From now on a key's cell leads to this slot: the cell that leads to its old one, so that a reader
// finds the one or the other; or the first that leads to no block; or else one of another block,
// which is lost then: of a full store's blocks, with every slot written 20 times, one in a million.
void MappedBlocks::index(uint64_t hash, uint32_t number, const std::optional<Found> &old) {
    Cell *place = nullptr;
    for (Cell &at : std::span(cells(hash), kCells)) {
        const uint32_t cell = at.load(std::memory_order_relaxed);
        if (old && cell == cell_of(hash, old->slot)) {
            place = &at;
            break;
        }
        const bool none = slot_in(cell) >= slots_ || !published(slot(slot_in(cell)).word.load());
        if (none && place == nullptr) place = &at;
    }
    if (place == nullptr) place = cells(hash);
    place->store(cell_of(hash, number), std::memory_order_release);
}

// Publishes a block in a slot that nobody else has.
void MappedBlocks::write(uint32_t number, const Key &key, RowView from) {
    std::atomic_thread_fence(std::memory_order_release);  // behind the word without a block
    Slot &s = slot(number);
    const uint64_t generation = least_tag(from);
    for (uint32_t w = 0; w < key_words_; w++)
        s.key[w].store(key.words[w], std::memory_order_relaxed);
    s.generation.store(generation, std::memory_order_relaxed);
    MappedWord *to = rows(number);
    WordSum sum;
    copy_in(to, from.ids, ids_bytes_, sum);
    to += words_of(ids_bytes_);
    copy_in(to, from.validity, validity_bytes_, sum);
    to += words_of(validity_bytes_);
    copy_in(to, reinterpret_cast<const uint8_t *>(from.tags), 8 * size_t{config_.block_rows}, sum);
    used(number).store(1, std::memory_order_relaxed);
    const uint64_t checksum = block_sum(sum.value(), key.hash, generation);
    s.word.store(published_word(s.word.load(std::memory_order_relaxed), checksum),
                 std::memory_order_release);
}

// Fills cells that old rows lack from new ones. Whether there were any.
bool MappedBlocks::merge(RowPlanes old_rows, RowView new_rows, bool &mismatched) const {
    const Shape &shape = *config_.shape;
    bool filled = false;
    for (uint32_t r = 0; r < config_.block_rows; r++) {
        const RowPlanes to = old_rows.from(shape, r);
        const RowView from = new_rows.from(shape, r);
        const MergedRow merged =
            merge_row(shape, to.ids, to.validity, *to.tags, from.ids, from.validity, *from.tags);
        filled |= merged.filled;
        mismatched |= merged.mismatched;
    }
    return filled;
}

void MappedBlocks::Writer::publish(std::span<New> blocks, uint64_t generation) const {
    blocks_.has_writer();
    blocks_.publish(blocks, generation);
}
void MappedBlocks::publish(std::span<New> blocks, uint64_t generation) {
    Key keys[kAtOnce];
    for (; !blocks.empty(); blocks = blocks.subspan(std::min(kAtOnce, blocks.size()))) {
        const size_t n = std::min(kAtOnce, blocks.size());
        for (size_t i = 0; i < n; i++) {
            keys[i] = key_at(blocks[i].key, 0);
            // In pairs this is worth 21 % of publishing 256 (small rows, cold caches).
            __builtin_prefetch(cells(keys[i].hash), 1);
        }
        for (size_t i = 0; i < n; i++)
            blocks[i].result = publish_one(blocks[i], keys[i], generation);
    }
}

MappedCount MappedBlocks::publish_one(New &block, const Key &key, uint64_t generation) {
    auto *scratch = reinterpret_cast<uint8_t *>(scratch_.data());
    const RowPlanes old_rows{scratch, scratch + 8 * words_of(ids_bytes_),
                             scratch_.data() + words_of(ids_bytes_) + words_of(validity_bytes_)};
    block.mismatched = false;
    if (this->generation() != generation) return MappedCount::stale;
    RowView from = block.rows;
    const std::optional<Found> old = look(key);
    if (old && old->tag >= generation) {  // or it gives way
        bool damaged, complete;
        if (!copy_block(*old, old_rows, damaged) ||
            !good_rows(old_rows, config_.block_rows, complete)) {
            discard_damaged(*old);
        } else if (!merge(old_rows, block.rows, block.mismatched)) {
            used(old->slot).store(1, std::memory_order_relaxed);
            return MappedCount::repeated;
        } else {
            from = old_rows;
        }
    }
    const uint32_t number = take_slot();  // that of the block that is there, if it is next
    write(number, key, from);
    index(key.hash, number, old);
    if (old) drop(*old);
    return MappedCount::published;
}

// ---- Counts -----------------------------------------------------------------------------------

MappedBlocks::Usage MappedBlocks::usage() const {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < slots_; i++)
        blocks += published(slot(i).word.load(std::memory_order_relaxed));
    uint64_t most = control_->most_blocks.load(std::memory_order_relaxed);
    while (most < blocks && !control_->most_blocks.compare_exchange_weak(most, blocks)) {}
    const uint64_t each = slot_bytes(config_);
    return {blocks, blocks * each, std::max(most, blocks) * each, slots_ * each};
}

}  // namespace routecap
