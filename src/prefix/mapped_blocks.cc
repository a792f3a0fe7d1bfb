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
constexpr uint32_t kVersion = 6;
constexpr uint32_t kMostSlots = 1u << 27;
constexpr uint32_t kMostHops = 256;      // in a chain of one block on average
constexpr uint32_t kOut = UINT32_MAX;    // `older` of what is not in the line
constexpr uint32_t kMostWalks = 64;      // of a reader, through a chain that changes
constexpr size_t kCheckedBytes = 16384;  // of ids, which are still in the cache when checked

constexpr size_t align(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// ---- A slot's word: state, number of the use, checksum
constexpr uint64_t kFree = 0, kWritten = 1, kPublished = 2, kDropped = 3, kStates = 3;
constexpr uint64_t state(uint64_t word) { return word & kStates; }
constexpr uint64_t kUse = 4, kUses = 0xfffffffc;
constexpr uint64_t next_use(uint64_t word, uint64_t state) {
    return ((word + kUse) & kUses) | state;
}
constexpr uint64_t published_word(uint64_t written, uint64_t sum) {
    return (written & kUses) | kPublished | sum << 32;
}
constexpr uint64_t sum_of(uint64_t word) { return word >> 32; }

constexpr uint64_t fold(uint64_t hash) { return (hash ^ hash >> 32) & 0xffffffff; }
// What a block's key and generation put into its checksum. It can be taken out again.
constexpr uint64_t name_sum(uint64_t key_hash, uint64_t generation) {
    return fold(xxh64::avalanche(key_hash + generation * xxh64::kPrime1));
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
    // The writer's, but for what was dropped.
    alignas(64) Link dirty;    // 1: a writer is changing the table, or died when it did
    Link free;                 // the first of the list
    Link oldest, newest;       // the ends of the line
    Link used, most_used;      // how many slots are not free, and were at most
    alignas(64) Link dropped;  // the last that somebody dropped, of a list
};

struct MappedBlocks::Slot {
    MappedWord word;
    MappedWord generation;  // the least tag of its rows
    Link next;              // in its chain, or in the list of free ones
    Link next_dropped;
    Link newer, older;              // in the line
    MappedWord key[kMostKeyWords];  // as many as a key has words
};

// ---- Life -------------------------------------------------------------------------------------

MappedBlocks::MappedBlocks(const StoreConfig &config)
    : config_(config),
      key_words_(static_cast<uint32_t>(words_of(config.key_bytes))),
      ids_bytes_(size_t{config.block_rows} * config.shape->ids_bytes),
      validity_bytes_(size_t{config.block_rows} * config.shape->validity_bytes),
      slot_stride_(8 * (4 + size_t{key_words_})),
      rows_words_(words_of(ids_bytes_) + words_of(validity_bytes_) + config.block_rows) {
    scratch_.resize(rows_words_);
}

MappedBlocks::Layout MappedBlocks::layout(uint32_t slots) const {
    constexpr size_t kPage = 4096;
    Layout l{};
    const size_t identity = sizeof(Fixed) + config_.shape->layers * sizeof(LayerIdentity) + 16;
    l.control = align(identity, kPage);
    l.evictions = align(l.control + sizeof(Control), kPage);
    l.buckets = l.evictions + Evictions::kWords * 8;
    l.slots = align(l.buckets + slots * sizeof(Link), 64);
    l.rows = align(l.slots + (size_t{slots} + 1) * slot_stride_, 64);  // the first is nobody's
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
                                  uint64_t{kMostSlots - 1} * each);
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
    {
        const Lock lock(mutex_);
        repair();
    }
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
    if (fixed.slots < 2 || fixed.slots >= kMostSlots || fixed.file_bytes != file_.bytes() ||
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

MappedBlocks::Slot &MappedBlocks::slot(uint32_t number) const {
    // Whatever a link says: slot 0 is nobody's.
    const size_t place = number <= slots_ ? number : 0;
    return *reinterpret_cast<Slot *>(file_.memory() + at_.slots + place * slot_stride_);
}
MappedWord *MappedBlocks::rows(uint32_t number) const {
    return reinterpret_cast<MappedWord *>(file_.memory() + at_.rows) + (number - 1) * rows_words_;
}
MappedBlocks::Link &MappedBlocks::bucket(uint64_t hash) const {
    auto *const buckets = reinterpret_cast<Link *>(file_.memory() + at_.buckets);
    return buckets[(hash & 0xffffffff) * slots_ >> 32];
}
std::atomic<uint64_t> &MappedBlocks::counter(MappedCount what) const {
    return control_->counts[static_cast<size_t>(what)];
}

[[gnu::always_inline]] inline uint64_t MappedBlocks::hash_of(const Key &key) const {
    return checksum(key_words_, seed_, [&](size_t w) { return key.words[w]; });
}
MappedBlocks::Key MappedBlocks::key_at(const uint8_t *keys, size_t i) const {
    Key key{};
    std::memcpy(key.words.data(), keys + i * config_.key_bytes, config_.key_bytes);
    key.hash = hash_of(key);
    return key;
}
MappedBlocks::Key MappedBlocks::key_in(uint32_t number) const {
    Key key{};
    for (uint32_t w = 0; w < key_words_; w++)
        key.words[w] = slot(number).key[w].load(std::memory_order_relaxed);
    key.hash = hash_of(key);
    return key;
}
bool MappedBlocks::is_key(const Slot &s, const Key &key) const {
    for (uint32_t w = 0; w < key_words_; w++)
        if (s.key[w].load(std::memory_order_relaxed) != key.words[w]) return false;
    return true;
}

// ---- Finding ----------------------------------------------------------------------------------

std::optional<MappedBlocks::Match> MappedBlocks::look(const Key &key) const {
    const Link &first = bucket(key.hash);
    for (uint32_t walk = 0; walk < kMostWalks; walk++) {
        uint32_t number = first.load(std::memory_order_acquire);
        bool in_chain = true;
        for (uint32_t hop = 0; number != 0 && in_chain; hop++) {
            if (number > slots_ || hop == kMostHops) return {};
            const Slot &s = slot(number);
            const uint64_t word = s.word.load(std::memory_order_acquire);
            const bool same = is_key(s, key);
            const uint64_t generation = s.generation.load(std::memory_order_relaxed);
            const uint32_t next = s.next.load(std::memory_order_acquire);
            // What is compared next is compared with nothing that was written since.
            in_chain =
                state(word) >= kPublished && (same || &bucket(key_in(number).hash) == &first);
            std::atomic_thread_fence(std::memory_order_acquire);
            in_chain &= s.word.load(std::memory_order_relaxed) == word;
            if (in_chain && same && state(word) == kPublished)
                return Match{number, word, generation};
            number = next;
        }
        if (in_chain) return {};
    }
    return {};
}

int32_t MappedBlocks::reason_of_absence(uint64_t hash) const {
    return evictions_->has(hash) ? ROUTECAP_MISSING_EVICTED : ROUTECAP_MISSING_NOT_PUBLISHED;
}

void MappedBlocks::fetch(const uint8_t *key_bytes) const {
    __builtin_prefetch(&bucket(key_at(key_bytes, 0).hash), 1);
}

void MappedBlocks::find(const uint8_t *keys, uint64_t generation, std::span<Found> found) const {
    const uint64_t now = this->generation();
    // Memory is fetched for many keys at once: first buckets, then slots.
    Key at_once[kAtOnce];
    for (size_t first = 0; first < found.size(); first += kAtOnce) {
        const size_t n = std::min<size_t>(kAtOnce, found.size() - first);
        for (size_t i = 0; i < n; i++) {
            at_once[i] = key_at(keys, first + i);
            __builtin_prefetch(&bucket(at_once[i].hash));
        }
        for (size_t i = 0; i < n; i++) {
            const Slot &s = slot(bucket(at_once[i].hash).load(std::memory_order_relaxed));
            __builtin_prefetch(&s);
            __builtin_prefetch(&s.key[key_words_ - 1]);  // which may be in the next line
        }
        for (size_t i = 0; i < n; i++) {
            const uint64_t hash = at_once[i].hash;
            const std::optional<Match> m = look(at_once[i]);
            Found &f = found[first + i];
            if (!m)
                f = {hash, 0, 0, reason_of_absence(hash), 0, false};
            else if (m->generation < now || generation != now)
                f = {hash, 0, 0, ROUTECAP_MISSING_STALE, 0, false};
            else
                f = {hash, m->word, m->slot, 0, m->generation, false};
        }
    }
    // What others have published since the store advanced is not for this caller.
    if (this->generation() != now) find(keys, generation, found);
}

// ---- Reading ----------------------------------------------------------------------------------

// Copies a block, if it is still the one that was found. `damaged`: it is, and its rows are not
// what was published.
bool MappedBlocks::copy_block(const Found &found, RowPlanes to, bool &damaged) const {
    const Slot &s = slot(found.slot);
    damaged = false;
    if (s.word.load(std::memory_order_acquire) != found.word) return false;
    const MappedWord *from = rows(found.slot);
    WordSum sum;
    copy_out(to.ids, from, ids_bytes_, sum);
    from += words_of(ids_bytes_);
    copy_out(to.validity, from, validity_bytes_, sum);
    from += words_of(validity_bytes_);
    copy_out(reinterpret_cast<uint8_t *>(to.tags), from, 8 * size_t{config_.block_rows}, sum);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (s.word.load(std::memory_order_relaxed) != found.word) return false;
    damaged = (fold(sum.value()) ^ name_sum(found.hash, found.tag)) != sum_of(found.word);
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

// Nobody finds the block of a slot any more, if it is still the one of that word. The slot stays in
// its chain until a writer comes.
bool MappedBlocks::drop(uint32_t number, uint64_t word) {
    Slot &s = slot(number);
    if (!s.word.compare_exchange_strong(word, word | kDropped)) return false;
    uint32_t last = control_->dropped.load();
    do s.next_dropped.store(last);
    while (!control_->dropped.compare_exchange_weak(last, number));
    return true;
}

// Whether the key had a block. Its next one may come while this is on its way.
bool MappedBlocks::drop(const Key &key) {
    for (uint32_t walk = 0; walk < kMostWalks; walk++) {
        const std::optional<Match> m = look(key);
        if (!m) return false;
        if (drop(m->slot, m->word)) return true;
    }
    return false;
}

// A block went for room, or was dropped.
void MappedBlocks::note_eviction(uint64_t hash) {
    evictions_->add(hash);
    count(MappedCount::evicted, 1);
}

bool MappedBlocks::evict(const uint8_t *key_bytes, bool as_if) {
    const Key key = key_at(key_bytes, 0);
    const bool there = drop(key) || as_if;
    if (there) note_eviction(key.hash);
    return there;
}

void MappedBlocks::discard_damaged(const Found &found) {
    if (!drop(found.slot, found.word)) return;
    evictions_->add(found.hash);
    count(MappedCount::damaged, 1);
}

// ---- The lock ---------------------------------------------------------------------------------

bool MappedBlocks::lock(Patience patience) {
    using Clock = std::chrono::steady_clock;
    constexpr auto kTry = std::chrono::microseconds(50);
    constexpr auto kWait = std::chrono::seconds(1);
    const bool waits = patience == Patience::waits && !held_up_.load(std::memory_order_relaxed);
    Clock::time_point start;
    for (uint32_t times = 0;; times++) {
        if (mutex_.try_lock()) {
            if (file_.lock(MappedFile::kWriter)) break;
            mutex_.unlock();
        }
        const auto now = Clock::now();
        if (times == 0) start = now;
        if (now - start >= (waits ? Clock::duration(kWait) : Clock::duration(kTry))) {
            if (waits) held_up_.store(true, std::memory_order_relaxed);
            return false;
        }
        if (waits && now - start >= kTry) std::this_thread::sleep_for(kTry);
    }
    held_up_.store(false, std::memory_order_relaxed);
    if (control_->dirty.exchange(1) != 0) repair();
    // Before the table is changed everybody sees that it is.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (control_->dropped.load(std::memory_order_relaxed) != 0) free_dropped();
    return true;
}

void MappedBlocks::unlock() {
    control_->dirty.store(std::exchange(broken_, false), std::memory_order_release);
    file_.unlock(MappedFile::kWriter);
    mutex_.unlock();
}

// ---- Chains, the line and the list of free slots ----------------------------------------------

// The link that leads to the block of a key; null if there is none.
MappedBlocks::Link *MappedBlocks::link_to(const Key &key) const {
    Link *link = &bucket(key.hash);
    for (uint32_t hop = 0;; hop++) {
        const uint32_t number = link->load(std::memory_order_relaxed);
        if (number == 0) return nullptr;
        if (number > slots_ || hop == kMostHops) {
            broken_ = true;
            return nullptr;
        }
        Slot &s = slot(number);
        if (state(s.word.load(std::memory_order_relaxed)) == kPublished && is_key(s, key))
            return link;
        link = &s.next;
    }
}

void MappedBlocks::unlink(uint32_t number) {
    Link *link = &bucket(key_in(number).hash);
    for (uint32_t hop = 0; hop < kMostHops; hop++) {
        const uint32_t there = link->load(std::memory_order_relaxed);
        if (there == 0 || there > slots_) return;  // another took its place
        Slot &s = slot(there);
        if (there == number) {
            link->store(s.next.load(std::memory_order_relaxed), std::memory_order_release);
            return;
        }
        link = &s.next;
    }
    broken_ = true;
}

// What is the first goes next.
void MappedBlocks::enqueue(uint32_t number, bool first) {
    Slot &s = slot(number);
    Link &end = first ? control_->oldest : control_->newest;
    Link &other = first ? control_->newest : control_->oldest;
    const uint32_t before = end.load(std::memory_order_relaxed);
    (first ? s.newer : s.older).store(before, std::memory_order_relaxed);
    (first ? s.older : s.newer).store(0, std::memory_order_relaxed);
    Slot &neighbour = slot(before);
    if (before == 0)
        other.store(number, std::memory_order_relaxed);
    else
        (first ? neighbour.older : neighbour.newer).store(number, std::memory_order_relaxed);
    end.store(number, std::memory_order_relaxed);
}

void MappedBlocks::dequeue(uint32_t number) {
    Slot &s = slot(number);
    const uint32_t newer = s.newer.load(std::memory_order_relaxed),
                   older = s.older.exchange(kOut, std::memory_order_relaxed);
    if (older == kOut) return;
    (newer != 0 ? slot(newer).older : control_->newest).store(older, std::memory_order_relaxed);
    (older != 0 ? slot(older).newer : control_->oldest).store(newer, std::memory_order_relaxed);
}

// Blocks of older weights go first.
void MappedBlocks::use(uint32_t number) {
    dequeue(number);
    enqueue(number, slot(number).generation.load(std::memory_order_relaxed) < generation());
}

void MappedBlocks::touch(std::span<const Found> found) {
    constexpr size_t kMany = 256;
    for (; !found.empty(); found = found.subspan(std::min(kMany, found.size()))) {
        const auto note = [&](const Writer &) REQUIRES(mutex_) {
            for (const Found &f : found.first(std::min(kMany, found.size())))
                if (f.word != 0 && slot(f.slot).word.load(std::memory_order_relaxed) == f.word)
                    use(f.slot);
        };
        if (!change(Patience::tries, note)) return;
    }
}

// Takes a block out of the table. False: somebody has dropped it.
bool MappedBlocks::retire(uint32_t number) {
    Slot &s = slot(number);
    uint64_t word = s.word.load();
    unlink(number);
    dequeue(number);
    return state(word) == kPublished &&
           s.word.compare_exchange_strong(word, next_use(word, kWritten));
}

void MappedBlocks::give_back(uint32_t number) {
    Slot &s = slot(number);
    s.word.store(next_use(s.word.load(std::memory_order_relaxed), kFree),
                 std::memory_order_release);
    s.older.store(kOut, std::memory_order_relaxed);
    s.next.store(control_->free.load(std::memory_order_relaxed), std::memory_order_relaxed);
    control_->free.store(number, std::memory_order_relaxed);
    control_->used.fetch_sub(1, std::memory_order_relaxed);
}

// A slot to be written, out of chain and line: a free one, or that of the oldest block; 0: none.
uint32_t MappedBlocks::take_slot() {
    for (uint32_t tried = 0; tried <= slots_; tried++) {
        const uint32_t free = control_->free.load(std::memory_order_relaxed),
                       oldest = control_->oldest.load(std::memory_order_relaxed);
        Slot &s = slot(free);
        const uint64_t word = s.word.load(std::memory_order_relaxed);
        if (free > slots_ || oldest > slots_ || (free != 0 && state(word) != kFree) ||
            (free == 0 && oldest == 0)) {
            repair();
        } else if (free != 0) {
            control_->free.store(s.next.load(std::memory_order_relaxed), std::memory_order_relaxed);
            const uint32_t used = control_->used.fetch_add(1, std::memory_order_relaxed) + 1;
            if (used > control_->most_used.load(std::memory_order_relaxed))
                control_->most_used.store(used, std::memory_order_relaxed);
            s.word.store(next_use(word, kWritten), std::memory_order_relaxed);
            return free;
        } else {
            const uint64_t hash = key_in(oldest).hash;
            if (!retire(oldest)) {  // it was dropped, maybe by one that died before it said so
                repair();
                continue;
            }
            note_eviction(hash);
            return oldest;
        }
    }
    broken_ = true;
    return 0;
}

// ---- Publishing -------------------------------------------------------------------------------

// Writes a block into a slot that nobody else has. The word that publishes it.
uint64_t MappedBlocks::write(uint32_t number, const Key &key, RowView from) {
    std::atomic_thread_fence(std::memory_order_release);  // behind the word that says so
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
    return published_word(s.word.load(std::memory_order_relaxed),
                          fold(sum.value()) ^ name_sum(key.hash, generation));
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
    for (; !blocks.empty(); blocks = blocks.subspan(std::min<size_t>(kAtOnce, blocks.size()))) {
        const size_t n = std::min<size_t>(kAtOnce, blocks.size());
        for (size_t i = 0; i < n; i++) {
            keys[i] = key_at(blocks[i].key, 0);
            __builtin_prefetch(&bucket(keys[i].hash), 1);
        }
        for (size_t i = 0; i < n; i++)
            __builtin_prefetch(&slot(bucket(keys[i].hash).load(std::memory_order_relaxed)), 1);
        // Where the next will be written, if slots are free or go in the order of their numbers.
        const uint32_t free = control_->free.load(std::memory_order_relaxed);
        const uint32_t next = free != 0 ? free : control_->oldest.load(std::memory_order_relaxed);
        for (size_t i = 0; i < n; i++) {
            if (next + i + 1 <= slots_) {
                __builtin_prefetch(&slot(static_cast<uint32_t>(next + i + 1)), 1);
                __builtin_prefetch(rows(static_cast<uint32_t>(next + i + 1)), 1);
            }
            blocks[i].result = publish_one(blocks[i], keys[i], generation);
        }
    }
}

MappedBlocks::Published MappedBlocks::publish_one(New &block, const Key &key, uint64_t generation) {
    auto *scratch = reinterpret_cast<uint8_t *>(scratch_.data());
    const RowPlanes old_rows{scratch, scratch + 8 * words_of(ids_bytes_),
                             scratch_.data() + words_of(ids_bytes_) + words_of(validity_bytes_)};
    block.mismatched = false;
    if (this->generation() != generation) return Published::stale;
    RowView from = block.rows;
    if (const Link *link = link_to(key); link != nullptr) {
        const uint32_t there = link->load(std::memory_order_relaxed);
        const Found old{key.hash,
                        slot(there).word.load(),
                        there,
                        0,
                        slot(there).generation.load(std::memory_order_relaxed),
                        false};
        bool damaged, complete;
        if (state(old.word) != kPublished || old.tag < generation) {
            // It gives way, or somebody has just dropped it.
        } else if (!copy_block(old, old_rows, damaged) ||
                   !good_rows(old_rows, config_.block_rows, complete)) {
            discard_damaged(old);
        } else if (!merge(old_rows, block.rows, block.mismatched)) {
            use(there);
            return Published::repeated;
        } else {
            from = old_rows;
        }
    }
    const uint32_t number = take_slot();  // that of the block that is there, if it was the oldest
    if (number == 0) return Published::refused;
    Slot &s = slot(number);
    const uint64_t word = write(number, key, from);
    Link *link = link_to(key);
    const uint32_t before = link != nullptr ? link->load(std::memory_order_relaxed) : 0;
    if (link == nullptr) link = &bucket(key.hash);
    s.next.store(before != 0 ? slot(before).next.load(std::memory_order_relaxed)
                             : link->load(std::memory_order_relaxed),
                 std::memory_order_relaxed);
    s.word.store(word, std::memory_order_release);
    // Whoever comes by finds the one or the other.
    link->store(number, std::memory_order_release);
    if (before != 0 && retire(before)) give_back(before);
    use(number);
    return Published::stored;
}

// ---- What others left -------------------------------------------------------------------------

// Frees what was dropped without the lock.
void MappedBlocks::free_dropped() {
    uint32_t number = control_->dropped.exchange(0);
    for (uint32_t i = 0; number != 0; i++) {
        Slot &s = slot(number);
        if (number > slots_ || i > slots_ || state(s.word.load()) != kDropped) {
            broken_ = true;
            return;
        }
        const uint32_t next = s.next_dropped.load();
        unlink(number);
        dequeue(number);
        give_back(number);
        number = next;
    }
}

// Makes everything anew but the chains, in which what is right stays: other processes read them.
void MappedBlocks::repair() {
    constexpr uint32_t kInChain = kOut - 1;  // `older`, until there is a line
    control_->dropped.exchange(0);
    for (Link *link : {&control_->free, &control_->oldest, &control_->newest}) link->store(0);
    for (uint32_t i = 1; i <= slots_; i++) slot(i).older.store(kOut, std::memory_order_relaxed);
    Link *const buckets = reinterpret_cast<Link *>(file_.memory() + at_.buckets);
    for (uint32_t b = 0; b < slots_; b++) {
        Link *link = &buckets[b];
        while (const uint32_t number = link->load(std::memory_order_relaxed)) {
            Slot &s = slot(number);
            const uint64_t is = state(s.word.load());
            if (number <= slots_ && is == kDropped) {
                const uint32_t next = s.next.load(std::memory_order_relaxed);
                link->store(next == number ? 0 : next, std::memory_order_release);
                continue;
            }
            if (number > slots_ || is != kPublished ||
                s.older.load(std::memory_order_relaxed) == kInChain ||
                &bucket(key_in(number).hash) != &buckets[b]) {
                link->store(0, std::memory_order_release);
                break;
            }
            s.older.store(kInChain, std::memory_order_relaxed);
            link = &s.next;
        }
    }
    control_->used.store(slots_);
    for (uint32_t i = slots_; i > 0; i--) {
        Slot &s = slot(i);
        if (s.older.exchange(kOut, std::memory_order_relaxed) != kInChain)
            give_back(i);
        else
            use(i);
    }
}

MappedBlocks::Usage MappedBlocks::usage() const {
    Usage usage{};
    for (uint32_t i = 1; i <= slots_; i++)
        usage.blocks += state(slot(i).word.load(std::memory_order_relaxed)) == kPublished;
    const uint64_t each = slot_bytes(config_);
    usage.bytes = usage.blocks * each;
    usage.bytes_peak =
        std::max<uint64_t>(control_->most_used.load(std::memory_order_relaxed), usage.blocks) *
        each;
    usage.bytes_budget = slots_ * each;
    return usage;
}

}  // namespace routecap
