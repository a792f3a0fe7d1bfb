#include "store/mapped_blocks.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "routing/import.h"
#include "store/row_merge.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"  // which does not know fences; every access here is atomic
#endif

namespace routecap {
namespace {

constexpr char kMagic[8] = {'r', 'c', 's', 't', 'o', 'r', 'e', '\n'};
constexpr uint32_t kVersion = 3;
constexpr uint32_t kCells = 16;  // of a bucket
constexpr uint32_t kFill = 10;   // of them are used on average, if all slots are
constexpr uint32_t kMostSlots = 1u << 27;
constexpr uint32_t kLookForDead = 1024;  // claims between two looks
constexpr uint32_t kAhead = 6;           // blocks whose memory is fetched before it is written
constexpr size_t kCheckedBytes = 16384;  // of ids, which are still in the cache when checked

constexpr size_t align(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// ---- A slot's word: state, owner, number of the claim, checksum
constexpr uint64_t kFree = 0, kClaimed = 1, kPublished = 2, kStates = 3;
constexpr uint64_t state(uint64_t word) { return word & kStates; }
constexpr uint32_t owner(uint64_t word) { return static_cast<uint32_t>(word >> 2 & 63); }
constexpr uint64_t kClaimStep = 1 << 8, kClaimNumbers = 0xffffff00;
constexpr uint64_t next_claim(uint64_t word) { return (word + kClaimStep) & kClaimNumbers; }
constexpr uint64_t published_word(uint64_t claimed, uint64_t sum) {
    return (claimed & kClaimNumbers) | kPublished | sum << 32;
}
constexpr uint64_t sum_of(uint64_t word) { return word >> 32; }

// ---- A slot's pins: who retains the block, whether somebody takes it out because nobody does (it
// is going), and of which claim the block is
constexpr uint64_t kGoing = uint64_t{1} << MappedFile::kLocks, kPinners = kGoing - 1;
constexpr uint32_t kPinsClaim = MappedFile::kLocks + 1;  // its lowest bit
constexpr uint64_t pins_of(uint64_t word, uint64_t bits) { return word >> 8 << kPinsClaim | bits; }
constexpr bool are_of(uint64_t pins, uint64_t word) {
    return pins >> kPinsClaim << kPinsClaim == pins_of(word, 0);
}
constexpr uint64_t pinners(uint64_t pins) { return (pins & kGoing) != 0 ? 0 : pins & kPinners; }
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
    uint32_t slots, block_rows, key_bytes, flags;
    uint32_t layers, k;
    int32_t id_space;
    uint32_t reserved;
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
    MappedWord relinked;  // how many blocks gave way to one whose key is in another cell
    alignas(64) MappedAges::Number clock;
    alignas(64) MappedWord evictions;
    alignas(64) std::array<std::atomic<uint64_t>, static_cast<size_t>(MappedCount::end)> counts;
    // 1: a process has this number, or died with it.
    alignas(64) std::array<std::atomic<uint32_t>, MappedFile::kLocks> attached;
};

struct MappedBlocks::Slot {
    MappedWord word;
    MappedWord generation;  // the least tag of its rows
    MappedWord pins;
    MappedWord key[kMostKeyWords];  // as many as a key has words
};

// ---- Life -------------------------------------------------------------------------------------

MappedBlocks::MappedBlocks(const StoreConfig &config)
    : config_(config),
      key_words_(static_cast<uint32_t>(words_of(config.key_bytes))),
      ids_bytes_(size_t{config.block_rows} * config.shape->ids_bytes),
      validity_bytes_(size_t{config.block_rows} * config.shape->validity_bytes),
      slot_stride_(8 * (3 + size_t{key_words_})),
      rows_words_(words_of(ids_bytes_) + words_of(validity_bytes_) + config.block_rows),
      process_generation_(routecap::process_generation()) {
    scratch_.resize(rows_words_);
}

MappedBlocks::~MappedBlocks() {
    // A child of fork() has nothing of it.
    if (me_ == UINT32_MAX || process_generation_ != routecap::process_generation()) return;
    sweep(me_);
    control_->attached[me_].store(0);
}

MappedBlocks::Layout MappedBlocks::layout(uint32_t slots) const {
    constexpr size_t kPage = 4096;
    Layout l{};
    const size_t identity = sizeof(Fixed) + config_.shape->layers * sizeof(LayerIdentity) + 16;
    l.control = align(identity, kPage);
    l.evictions = align(l.control + sizeof(Control), kPage);
    l.index = l.evictions + MappedEvictions::kWords * 8;
    l.ages = l.index + (size_t{slots} / kFill + 1) * kCells * sizeof(Cell);
    l.slots = align(l.ages + MappedAges::numbers(slots) * sizeof(MappedAges::Number), 64);
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
    fixed.flags = config_.flags;
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
    bucket_count_ = slots / kFill + 1;
    slot_bits_ = 1;
    while (slots >> slot_bits_ != 0) slot_bits_++;
    uint8_t *memory = file_.memory();
    control_ = reinterpret_cast<Control *>(memory + at_.control);
    ages_.emplace(reinterpret_cast<MappedAges::Number *>(memory + at_.ages), slots,
                  &control_->clock);
    evictions_.emplace(reinterpret_cast<MappedWord *>(memory + at_.evictions),
                       &control_->evictions);
}

uint64_t MappedBlocks::slot_bytes(const StoreConfig &config) {
    const MappedBlocks sizes(config);
    constexpr uint32_t kMany = 1u << 16;  // over which what is rounded is spread
    return (sizes.layout(2 * kMany).bytes - sizes.layout(kMany).bytes) / kMany;
}

// Makes a table in the memory that take(bytes) gets.
template <class Take>
int32_t MappedBlocks::initialise(Take take) {
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
    if (int32_t s = take(bytes); s < 0) return s;
    place(slots, seed);
    control_->generation.store(config_.generation);
    control_->evictions.store(MappedEvictions::kFirst);
    ages_->fill(MappedAges::kFree);
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
    std::unique_ptr<MappedBlocks> made(new MappedBlocks(config));
    int32_t memory = -1;
    int32_t status =
        made->initialise([&](uint64_t bytes) { return made->file_.create(bytes, memory); });
    if (status == ROUTECAP_OK) status = made->attach();
    if (status < 0) {
        if (memory >= 0) ::close(memory);
        return status;
    }
    descriptor = memory;
    blocks = std::move(made);
    return ROUTECAP_OK;
}

int32_t MappedBlocks::open(const StoreConfig &config, int32_t descriptor,
                           std::unique_ptr<MappedBlocks> &blocks) {
    std::unique_ptr<MappedBlocks> made(new MappedBlocks(config));
    MappedFile &file = made->file_;
    MappedFile::Has has;
    if (int32_t s = file.begin(descriptor, has); s < 0) return s;
    if (has == MappedFile::Has::lock) {
        if (int32_t s =
                made->initialise([&](uint64_t bytes) { return file.take(descriptor, bytes); });
            s < 0)
            return s;
        file.made();
    } else {
        if (int32_t s = file.map(descriptor); s < 0) return s;
        if (int32_t s = made->check_identity(); s < 0) return s;
    }
    if (int32_t s = made->attach(); s < 0) return s;
    blocks = std::move(made);
    return ROUTECAP_OK;
}

int32_t MappedBlocks::check_identity() {
    const auto refuse = [](const char *what, uint64_t has, uint64_t wanted) {
        return report(ROUTECAP_ERR_SHAPE_MISMATCH, "the store's %s is %lld, and not %lld", what,
                      static_cast<long long>(has), static_cast<long long>(wanted));
    };
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
    if (fixed.layers != shape.layers) return refuse("number of layers", fixed.layers, shape.layers);
    if (fixed.k != shape.k) return refuse("k", fixed.k, shape.k);
    if (fixed.id_space != shape.id_space)
        return refuse("id space", static_cast<uint64_t>(fixed.id_space),
                      static_cast<uint64_t>(shape.id_space));
    if (fixed.block_rows != config_.block_rows)
        return refuse("block_rows", fixed.block_rows, config_.block_rows);
    if (fixed.key_bytes != config_.key_bytes)
        return refuse("key_bytes", fixed.key_bytes, config_.key_bytes);
    if (fixed.flags != config_.flags) return refuse("flags", fixed.flags, config_.flags);
    if (fixed.bytes != identity(fixed.slots, fixed.seed, fixed.file_bytes).size())
        return damaged("its header has another size");
    for (uint32_t l = 0; l < shape.layers; l++) {
        LayerIdentity layer;
        std::memcpy(&layer, all.data() + sizeof fixed + l * sizeof layer, sizeof layer);
        const auto differs = [&](const char *what, int64_t has, int64_t wanted) {
            return report(ROUTECAP_ERR_SHAPE_MISMATCH,
                          "the store's %s of layer %u is %lld, and not %lld", what, l,
                          static_cast<long long>(has), static_cast<long long>(wanted));
        };
        if (layer.decoder_index != shape.layer_map[l])
            return differs("layer_map", layer.decoder_index, shape.layer_map[l]);
        if (layer.experts != shape.layer_experts[l])
            return differs("number of experts", layer.experts, shape.layer_experts[l]);
        if (layer.provenance != shape.layer_provenance[l])
            return differs("provenance", layer.provenance, shape.layer_provenance[l]);
    }
    if (fixed.slots < 2 || fixed.slots >= kMostSlots || fixed.file_bytes != file_.bytes() ||
        layout(fixed.slots).bytes != fixed.file_bytes)
        return damaged("it has not the size that its header says");
    place(fixed.slots, fixed.seed);
    return ROUTECAP_OK;
}

// Takes a number of those that no living process has.
int32_t MappedBlocks::attach() {
    for (uint32_t p = 0; p < MappedFile::kLocks; p++) {
        if (!file_.lock(p)) continue;
        me_ = p;
        if (control_->attached[p].exchange(1) != 0) sweep(p);
        return ROUTECAP_OK;
    }
    return report(ROUTECAP_ERR_NO_MEMORY, "%u processes have this store open", MappedFile::kLocks);
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

// ---- Finding ----------------------------------------------------------------------------------

MappedBlocks::Slot &MappedBlocks::slot(uint32_t index) const {
    return *reinterpret_cast<Slot *>(file_.memory() + at_.slots + index * slot_stride_);
}
MappedWord *MappedBlocks::rows(uint32_t index) const {
    return reinterpret_cast<MappedWord *>(file_.memory() + at_.rows) + index * rows_words_;
}
std::atomic<uint64_t> &MappedBlocks::counter(MappedCount what) const {
    return control_->counts[static_cast<size_t>(what)];
}

[[gnu::always_inline]] inline uint64_t MappedBlocks::hash_of(const Key &key) const {
    return checksum(key_words_, seed_, [&](size_t w) { return key.words[w]; });
}

MappedBlocks::Key MappedBlocks::key_at(const uint8_t *keys, size_t i) const {
    Key key{};
    if (config_.key_bytes == 8)  // as a slot has
        std::memcpy(key.words.data(), keys + 8 * i, 8);
    else
        std::memcpy(key.words.data(), keys + i * config_.key_bytes, config_.key_bytes);
    key.hash = hash_of(key);
    return key;
}

MappedBlocks::Key MappedBlocks::key_in(uint32_t index) const {
    Key key{};
    for (uint32_t w = 0; w < key_words_; w++)
        key.words[w] = slot(index).key[w].load(std::memory_order_relaxed);
    key.hash = hash_of(key);
    return key;
}

std::array<MappedBlocks::Cell *, 2> MappedBlocks::buckets(uint64_t hash) const {
    const auto in_range = [this](uint64_t half) {
        return static_cast<uint32_t>(half * bucket_count_ >> 32);
    };
    const uint32_t first = in_range(hash & 0xffffffff);
    uint32_t second = in_range(hash >> 32);
    if (second == first) second = (first + 1) % bucket_count_;
    Cell *index = reinterpret_cast<Cell *>(file_.memory() + at_.index);
    return {index + size_t{first} * kCells, index + size_t{second} * kCells};
}

// A slot's number, from 1, and above it as many bits of the key's hash as there is room for.
uint32_t MappedBlocks::print_of(uint64_t hash) const {
    return static_cast<uint32_t>(xxh64::avalanche(hash)) << slot_bits_;
}
uint32_t MappedBlocks::cell_value(uint64_t hash, uint32_t slot) const {
    return print_of(hash) | (slot + 1);
}
// Wraps if there is none.
uint32_t MappedBlocks::slot_of(uint32_t cell) const {
    return (cell & ((1u << slot_bits_) - 1)) - 1;
}

// Which cells of two buckets may lead to a key, and which are empty: a bit for each.
struct MappedBlocks::Cells {
    uint32_t candidates, empty;
};
[[gnu::always_inline]] inline MappedBlocks::Cells MappedBlocks::cells(
    const std::array<Cell *, 2> &buckets, uint32_t print) const {
    // Cells are loaded by twos, and four are compared at once: a bit of each in a lane.
    using Lanes [[gnu::vector_size(16)]] = uint32_t;
    using Loaded [[gnu::vector_size(16)]] = uint64_t;
    const Lanes mask = Lanes{} + (~0u << slot_bits_), wanted = Lanes{} + print;
    Lanes found{}, empty{}, bit{1, 2, 4, 8};
    for (const Cell *bucket : buckets)
        for (uint32_t i = 0; i < kCells; i += 4, bit <<= 4) {
            const auto *two = reinterpret_cast<const MappedWord *>(bucket + i);
            const auto four = (Lanes)Loaded{two[0].load(std::memory_order_relaxed),
                                            two[1].load(std::memory_order_relaxed)};
            found |= bit & (Lanes)((four & mask) == wanted);
            empty |= bit & (Lanes)(four == Lanes{});
        }
    // With one bucket only, both are the same.
    const uint32_t all = buckets[0] == buckets[1] ? 0xffff : ~0u;
    return {(found[0] | found[1] | found[2] | found[3]) & all,
            (empty[0] | empty[1] | empty[2] | empty[3]) & all};
}
uint32_t MappedBlocks::candidates(const std::array<Cell *, 2> &buckets, uint64_t hash) const {
    return cells(buckets, print_of(hash)).candidates;
}

// The block of a key in a slot, whether or not a cell leads there.
[[gnu::always_inline]] inline std::optional<MappedBlocks::Match> MappedBlocks::match_in(
    const Key &key, uint32_t index) const {
    const Slot &s = slot(index);
    const uint64_t word = s.word.load(std::memory_order_acquire);
    if (state(word) != kPublished) return {};
    for (uint32_t w = 0; w < key_words_; w++)
        if (s.key[w].load(std::memory_order_relaxed) != key.words[w]) return {};
    const uint64_t generation = s.generation.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (s.word.load(std::memory_order_relaxed) != word) return {};
    return Match{nullptr, 0, index, word, generation};
}

std::optional<MappedBlocks::Match> MappedBlocks::match(const Key &key, Cell &cell) const {
    const uint32_t value = cell.load(std::memory_order_acquire);
    if (slot_of(value) >= slots_) return {};
    std::optional<Match> found = match_in(key, slot_of(value));
    if (found) found->cell = &cell, found->value = value;
    return found;
}

// Two processes that publish a key at once may both have a block under it for a moment. All agree
// on the lower slot.
std::optional<MappedBlocks::Match> MappedBlocks::first_match(const Key &key,
                                                             const std::array<Cell *, 2> &buckets,
                                                             uint32_t candidates) const {
    std::optional<Match> first;
    for (; candidates != 0; candidates &= candidates - 1) {
        const auto i = static_cast<uint32_t>(__builtin_ctz(candidates));
        const std::optional<Match> found = match(key, buckets[i / kCells][i % kCells]);
        if (found && (!first || found->slot < first->slot)) first = found;
    }
    return first;
}
// A block may give way to another of its key while it is looked for: it is looked for again then.
// One slot can be left out.
std::optional<MappedBlocks::Match> MappedBlocks::first_match(const Key &key, uint32_t but) const {
    const auto both = buckets(key.hash);
    for (;;) {
        const uint64_t relinked = control_->relinked.load(std::memory_order_acquire);
        std::optional<Match> first;
        bool changed = false;
        for (uint32_t bits = candidates(both, key.hash); bits != 0; bits &= bits - 1) {
            const auto i = static_cast<uint32_t>(__builtin_ctz(bits));
            Cell &cell = both[i / kCells][i % kCells];
            const uint32_t value = cell.load(std::memory_order_acquire);
            const uint32_t index = slot_of(value);
            if (index >= slots_ || index == but) continue;
            const uint64_t word = slot(index).word.load(std::memory_order_acquire);
            const std::optional<Match> found = match(key, cell);
            if (found && found->slot != but && (!first || found->slot < first->slot)) first = found;
            changed |= slot(index).word.load(std::memory_order_acquire) != word ||
                       cell.load(std::memory_order_acquire) != value;
        }
        std::atomic_thread_fence(std::memory_order_acquire);
        changed |= control_->relinked.load(std::memory_order_relaxed) != relinked;
        if (first || !changed) return first;
    }
}

int32_t MappedBlocks::reason_of_absence(uint64_t hash) const {
    return evictions_->has(hash) ? ROUTECAP_MISSING_EVICTED : ROUTECAP_MISSING_NOT_PUBLISHED;
}

void MappedBlocks::fetch(const uint8_t *key_bytes) const {
    for (const Cell *bucket : buckets(key_at(key_bytes, 0).hash)) __builtin_prefetch(bucket, 1);
}

void MappedBlocks::find(const uint8_t *keys, uint64_t generation, std::span<Found> found) const {
    const uint64_t now = this->generation();
    // Memory is fetched for many keys at once: first buckets, then slots.
    Key at_once[kAtOnce];
    std::array<Cell *, 2> both[kAtOnce];
    uint32_t bits[kAtOnce];
    for (size_t first = 0; first < found.size(); first += kAtOnce) {
        const size_t n = std::min<size_t>(kAtOnce, found.size() - first);
        const uint64_t relinked = control_->relinked.load(std::memory_order_acquire);
        for (size_t i = 0; i < n; i++) {
            at_once[i] = key_at(keys, first + i);
            both[i] = buckets(at_once[i].hash);
            __builtin_prefetch(both[i][0]);
            __builtin_prefetch(both[i][1]);
        }
        for (size_t i = 0; i < n; i++) {
            bits[i] = candidates(both[i], at_once[i].hash);
            if (bits[i] == 0) continue;
            const auto c = static_cast<uint32_t>(__builtin_ctz(bits[i]));
            const uint32_t index =
                slot_of(both[i][c / kCells][c % kCells].load(std::memory_order_relaxed));
            if (index >= slots_) continue;
            const Slot &s = slot(index);
            __builtin_prefetch(&s);
            __builtin_prefetch(&s.key[key_words_ - 1]);  // which may be in the next line
        }
        std::atomic_thread_fence(std::memory_order_acquire);  // before `relinked` is read again
        for (size_t i = 0; i < n; i++) {
            const uint64_t hash = at_once[i].hash;
            auto m = first_match(at_once[i], both[i], bits[i]);
            if (!m && (bits[i] != 0 || control_->relinked.load() != relinked))
                m = first_match(at_once[i]);
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

void MappedBlocks::touch(std::span<const Found> found) {
    uint32_t stamp = ages_->stamps(static_cast<uint32_t>(found.size()));
    MappedAges::Changes uses(*ages_);
    for (const Found &f : found) {
        const uint32_t number = MappedAges::as_stamp(stamp++);
        if (f.reason != 0) continue;
        // Pinned, claimed and free ones stay what they are.
        const uint32_t seen = ages_->get(f.slot);
        if (seen >= MappedAges::kFirstStamp) uses.change(f.slot, seen, number);
    }
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
    while (found.reason == 0) {
        bool damaged;
        if (copy_block(found, to, damaged)) return true;
        if (damaged) discard_damaged(found);
        if (slot_keys())
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

// ---- Claiming slots ---------------------------------------------------------------------------

uint64_t MappedBlocks::claimed_word(uint64_t word) const {
    return next_claim(word) | kClaimed | uint64_t{me_} << 2;
}

// A slot that is this process' to write, a free one or the oldest; it gets a new age.
std::optional<uint32_t> MappedBlocks::claim(uint32_t stamp) {
    if (spare_) {
        const uint32_t index = *std::exchange(spare_, {});
        Slot &s = slot(index);
        // Who retained the block that was there has the one that replaced it.
        s.pins.store(pins_of(s.word.load(std::memory_order_relaxed), 0), std::memory_order_relaxed);
        ages_->renew(index, ages_->get(index), stamp);
        std::atomic_thread_fence(std::memory_order_release);
        return index;
    }
    if (++claims_ >= kLookForDead) free_slots_of_dead();
    for (bool freed = false;;) {
        const MappedAges::Oldest oldest = ages_->oldest(next_);
        if (oldest.slot != MappedAges::kNoSlot) {
            if (!claim_oldest(oldest.slot, oldest.number, stamp)) continue;
            next_ = oldest.slot + 1;
            if (next_ + kAtOnce < slots_) __builtin_prefetch(&slot(next_ + kAtOnce), 1);
            return oldest.slot;
        }
        if (freed) return {};
        free_slots_of_dead();
        drop_stray_pins();
        freed = true;
    }
}

// Fetches what is written first of a slot.
void MappedBlocks::expect_to_write(uint32_t index) const {
    constexpr size_t kLine = 64, kLines = 8;
    const auto *to = reinterpret_cast<const uint8_t *>(rows(index));
    for (size_t at = 0; at < std::min(kLines * kLine, rows_words_ * 8); at += kLine)
        __builtin_prefetch(to + at, 1);
}

// Fetches what is read of a block that is replaced, and its memory, where the next one will lie.
void MappedBlocks::expect_to_replace(const std::array<Cell *, 2> &buckets, uint32_t cells) const {
    const auto i = static_cast<uint32_t>(__builtin_ctz(cells));
    const uint32_t index = slot_of(buckets[i / kCells][i % kCells].load(std::memory_order_relaxed));
    if (index >= slots_) return;
    __builtin_prefetch(&slot(index), 1);
    expect_to_write(index);
}

// Claims one slot that its age says is to be taken. If it is not, its age is mended.
bool MappedBlocks::claim_oldest(uint32_t index, uint32_t number, uint32_t stamp) {
    Slot &s = slot(index);
    uint64_t word = s.word.load();
    const bool has_block = state(word) == kPublished;
    // A block that was published meanwhile has no number, or another one.
    if (ages_->get(index) != number) return false;
    bool may_go = !has_block && state(word) != kClaimed;
    if (has_block && number != MappedAges::kFree) {
        // From here on nobody can pin it.
        uint64_t nobody = pins_of(word, 0);
        may_go = s.pins.compare_exchange_strong(nobody, nobody | kGoing | my_pin());
    }
    if (may_go && s.word.compare_exchange_strong(word, claimed_word(word))) {
        ages_->renew(index, number, stamp);
        std::atomic_thread_fence(std::memory_order_release);
        if (!has_block) return true;
        const uint64_t hash = key_in(index).hash;
        unlink(hash, index);
        note_eviction(hash);
        return true;
    }
    if (ages_->change(index, number, MappedAges::kNone)) mend_age(index);
    return false;
}

// A slot's age was taken from it, and it may be one that is to be taken some time.
void MappedBlocks::mend_age(uint32_t index) {
    if (ages_->get(index) != MappedAges::kNone) return;
    const Slot &s = slot(index);
    const uint64_t word = s.word.load();
    if (state(word) == kFree)
        ages_->change(index, MappedAges::kNone, MappedAges::kFree);
    else if (state(word) == kPublished && s.pins.load() == pins_of(word, 0))
        ages_->change(index, MappedAges::kNone, newest_number(index));
}

// The age of a block that was used just now. Those of older weights go first.
uint32_t MappedBlocks::newest_number(uint32_t index) {
    if (slot(index).generation.load(std::memory_order_relaxed) < generation())
        return MappedAges::kFirst;
    return ages_->stamp();
}

void MappedBlocks::give_back(uint32_t index) {
    Slot &s = slot(index);
    s.word.store(next_claim(s.word.load(std::memory_order_relaxed)) | kFree,
                 std::memory_order_release);
    ages_->set(index, MappedAges::kFree);
    next_ = std::min(next_, index);
}

// A block went for room, or was dropped.
void MappedBlocks::note_eviction(uint64_t hash) {
    evictions_->add(hash);
    count(MappedCount::evicted, 1);
}

// Takes a block out of the table, whoever retains it. False: it was gone. With a key it has given
// way to another block of that key, which gets its pins.
bool MappedBlocks::retire(const Match &match, uint64_t hash, const Key *of_another) {
    const uint32_t index = match.slot;
    uint64_t word = match.word;
    Slot &s = slot(index);
    if (!s.word.compare_exchange_strong(word, claimed_word(word))) return false;
    uint32_t value = match.value;
    if (match.cell == nullptr)
        unlink(hash, index);
    else if (match.cell->load() == value)
        match.cell->compare_exchange_strong(value, 0);
    if (of_another != nullptr)
        if (const uint64_t pins = s.pins.load(); are_of(pins, match.word))
            inherit(*of_another, pinners(pins));
    if (of_another != nullptr && !spare_)
        spare_ = index;
    else
        give_back(index);
    return true;
}

// Gives back the slot of the last block that was replaced.
void MappedBlocks::end_replacing() {
    if (spare_) give_back(*std::exchange(spare_, {}));
    count(MappedCount::replaced, std::exchange(replaced_, 0));
}

// No cell of a key leads to a slot any more.
void MappedBlocks::unlink(uint64_t hash, uint32_t index) {
    const auto both = buckets(hash);
    for (uint32_t bits = candidates(both, hash); bits != 0; bits &= bits - 1) {
        const auto i = static_cast<uint32_t>(__builtin_ctz(bits));
        Cell &cell = both[i / kCells][i % kCells];
        uint32_t seen = cell.load(std::memory_order_relaxed);
        if (slot_of(seen) == index) cell.compare_exchange_strong(seen, 0);
    }
}

void MappedBlocks::discard_damaged(const Found &found) {
    const std::lock_guard lock(mutex_);
    if (!retire({nullptr, 0, found.slot, found.word, 0}, found.hash)) return;
    evictions_->add(found.hash);
    count(MappedCount::damaged, 1);
}

// ---- Publishing -------------------------------------------------------------------------------

// Writes a block into a claimed slot, for those who have it pinned. The word that publishes it.
uint64_t MappedBlocks::write(uint32_t index, const Key &key, RowView from, uint64_t pins) {
    Slot &s = slot(index);
    const uint64_t generation = least_tag(from);
    for (uint32_t w = 0; w < key_words_; w++)
        s.key[w].store(key.words[w], std::memory_order_relaxed);
    s.generation.store(generation, std::memory_order_relaxed);
    MappedWord *to = rows(index);
    WordSum sum;
    copy_in(to, from.ids, ids_bytes_, sum);
    to += words_of(ids_bytes_);
    copy_in(to, from.validity, validity_bytes_, sum);
    to += words_of(validity_bytes_);
    copy_in(to, reinterpret_cast<const uint8_t *>(from.tags), 8 * size_t{config_.block_rows}, sum);
    const uint64_t claimed = s.word.load(std::memory_order_relaxed);
    s.pins.store(pins_of(claimed, pins), std::memory_order_relaxed);
    return published_word(claimed, fold(sum.value()) ^ name_sum(key.hash, generation));
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

void MappedBlocks::publish(std::span<New> blocks, uint64_t generation) {
    std::array<Writing, kAtOnce> all;
    std::array<Writing *, kAtOnce> fresh;
    size_t n = 0;
    const uint32_t stamp = ages_->stamps(static_cast<uint32_t>(blocks.size()));
    for (size_t i = 0; i < blocks.size(); i++) {
        all[i].block = &blocks[i];
        blocks[i].result = {}, blocks[i].mismatched = false;
        all[i].key = key_at(blocks[i].key, 0);
        all[i].buckets = buckets(all[i].key.hash);
        all[i].value = print_of(all[i].key.hash);
        all[i].stamp = MappedAges::as_stamp(stamp + static_cast<uint32_t>(i));
    }
    const std::lock_guard lock(mutex_);
    // Those of keys that have no block, and that nobody here retains, go side by side.
    uint64_t hashes = 0;  // a bit for each before it, by its highest bits
    for (size_t i = 0; i < blocks.size(); i++) {
        Writing &w = all[i];
        const Cells found = cells(w.buckets, w.value);
        const uint64_t bit = uint64_t{1} << (w.key.hash >> 58);
        bool alone = found.candidates == 0 && !pins_.contains(w.key.hash);
        for (size_t b = 0; b < i && (hashes & bit) != 0; b++)
            alone &= all[b].key.hash != w.key.hash;
        hashes |= bit;
        if (slot_keys() && found.candidates != 0) expect_to_replace(w.buckets, found.candidates);
        w.cell = empty_cell(w.buckets, found.empty);
        if (alone) fresh[n++] = &w;
    }
    publish_new({fresh.data(), n}, generation);
    for (size_t i = 0; i < blocks.size(); i++)
        if (!blocks[i].result) blocks[i].result = publish_one(all[i], generation);
    end_replacing();
}

// Publishes blocks of different keys that have none, side by side: slots are claimed for all, then
// all are written, and so on. Each is linked before it is published, so that it needs no pin.
// Leaves those for which there is no room unless one of the others goes.
void MappedBlocks::publish_new(std::span<Writing *const> blocks, uint64_t generation) {
    if (this->generation() != generation) return;
    size_t n = 0;
    for (; n < blocks.size(); n++) {
        const auto to = claim(blocks[n]->stamp);
        if (!to) break;
        blocks[n]->slot = *to;
        blocks[n]->value |= *to + 1;
        if (n < kAhead) expect_to_write(*to);
    }
    blocks = blocks.first(n);
    for (size_t i = 0; i < n; i++) {
        if (i + kAhead < n) expect_to_write(blocks[i + kAhead]->slot);
        Writing &w = *blocks[i];
        w.word = write(w.slot, w.key, w.block->rows, 0);
    }
    for (Writing *w : blocks) {
        // Whoever has linked the key since is not passed over: its cells would be lost.
        if (candidates(w->buckets, w->key.hash) != 0) w->cell = nullptr;
        // The block before it may have taken the cell.
        for (uint32_t none = 0;
             w->cell != nullptr && !w->cell->compare_exchange_strong(none, w->value); none = 0)
            w->cell = empty_cell(w->buckets, cells(w->buckets, 0).empty);
        if (w->cell != nullptr)
            slot(w->slot).word.store(w->word, std::memory_order_release);
        else
            give_back(w->slot);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (const Writing *w : blocks) {
        if (w->cell == nullptr) continue;
        std::optional<Published> &result = w->block->result;
        result = Published::stored;
        mend_age(w->slot);
        // Somebody may have found that the cell led to no block yet, and have emptied it, or have
        // linked the key too.
        const bool linked = w->cell->load() == w->value;
        const uint32_t lead = candidates(w->buckets, w->key.hash);
        const bool other = (!linked || (lead & (lead - 1)) != 0) && first_match(w->key, w->slot);
        if (linked && !other) continue;
        const Match own{nullptr, 0, w->slot, w->word, least_tag(w->block->rows)};
        if (!linked && other) {  // it may have the cell, and be about to take this block out
            retire(own, w->key.hash, &w->key);
            result = {};
            continue;
        }
        if (!pin(own, my_pin())) continue;  // it has gone again
        result = link(own, w->key, {}, linked ? w->cell : nullptr);
        settle_pin(w->key, own);
    }
}

MappedBlocks::Published MappedBlocks::publish_one(const Writing &writing, uint64_t generation) {
    const Key &key = writing.key;
    New &block = *writing.block;
    auto *scratch = reinterpret_cast<uint8_t *>(scratch_.data());
    const RowPlanes old_rows{scratch, scratch + 8 * words_of(ids_bytes_),
                             scratch_.data() + words_of(ids_bytes_) + words_of(validity_bytes_)};
    for (;;) {
        RowView from = block.rows;
        const std::optional<Match> before = first_match(key);
        // After that: what it meets is not of newer weights then.
        if (this->generation() != generation) return Published::stale;
        if (before && before->generation >= generation && !slot_keys()) {
            const Found old{key.hash, before->word, before->slot, 0, before->generation, false};
            bool damaged, complete;
            if (!copy_block(old, old_rows, damaged) ||
                !good_rows(old_rows, config_.block_rows, complete)) {
                if (retire(*before, key.hash)) count(MappedCount::damaged, 1);
                continue;
            }
            if (!merge(old_rows, block.rows, block.mismatched)) {
                touch({&old, 1});
                return Published::repeated;
            }
            from = old_rows;
        }
        const std::optional<uint32_t> to = claim(writing.stamp);
        if (!to) return Published::refused;
        // The claim may have taken the block that was there, if it was the oldest: it is found
        // anew, or not.
        const Match own{nullptr, 0, *to, write(*to, key, from, my_pin()), least_tag(from)};
        slot(*to).word.store(own.word, std::memory_order_release);
        const std::optional<Published> result = link(own, key, before);
        settle_pin(key, own);
        if (result) return *result;
    }
}

// Makes a block that this process has pinned the one that its key leads to, in place of the block
// that it had; `linked` is a cell that leads there already. Nullopt: the block is to be published
// again, as a content key has another block by now, or as there is none. What is not linked is
// given back.
std::optional<MappedBlocks::Published> MappedBlocks::link(const Match &own, const Key &key,
                                                          const std::optional<Match> &before,
                                                          Cell *linked) {
    const auto both = buckets(key.hash);
    const uint32_t value = cell_value(key.hash, own.slot);
    // The claim may have taken the block that was there.
    std::optional<Match> other = before;
    if (!before || before->slot == own.slot || linked != nullptr)
        other = first_match(key, own.slot);
    // Who goes through a cell and who goes by the order of slots may take each other out. The last
    // to do so then finds that the key has no block.
    bool took_out = false;
    const auto stored = [&]() -> std::optional<Published> {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (took_out && !first_match(key)) return {};
        return Published::stored;
    };
    for (;; other = first_match(key, own.slot)) {
        if (linked != nullptr) {
            // What is there instead of this block has what it had.
            if (linked->load() != value) return stored();
            if (slot(own.slot).word.load() != own.word) {  // it was dropped
                uint32_t seen = value, none = 0;
                // The key's next block may be there, and linked before it is published.
                if (!match_in(key, own.slot) && linked->compare_exchange_strong(seen, 0) &&
                    match_in(key, own.slot))
                    linked->compare_exchange_strong(none, value);
                return stored();
            }
            if (!other) return Published::stored;
            // Another process has linked the key at the same time. The newer generation stays, or
            // else the lower slot, if it can.
            control_->relinked.fetch_add(1);
            const bool stays = other->generation == own.generation
                                   ? other->slot < own.slot
                                   : other->generation > own.generation;
            if (stays && pin(*other, my_pin())) {
                took_out |= retire(own, key.hash, &key);
                if (!slot_keys()) return {};
                return stored();
            }
            took_out |= retire(*other, key.hash, &key);
            continue;
        }
        if (other) {
            const bool expected =
                before && before->slot == other->slot && before->word == other->word;
            const bool newer = other->generation > own.generation && own.generation < generation();
            if (newer || (!slot_keys() && !expected)) {
                retire(own, key.hash, &key);
                return {};
            }
            uint32_t seen = other->value;
            if (!other->cell->compare_exchange_strong(seen, value)) continue;
            linked = other->cell;
            if (retire(*other, key.hash, &key)) {
                took_out = true;
                replaced_ += slot_keys();
            } else if (match_in(key, other->slot)) {
                // It is the key's next block in that slot, to which the cell leads again.
                seen = value;
                if (linked->compare_exchange_strong(seen, other->value)) linked = nullptr;
            }
            continue;
        }
        uint32_t none = 0;
        if (Cell *const empty = empty_cell(both, cells(both, 0).empty)) {
            if (empty->compare_exchange_strong(none, value)) linked = empty;
            std::atomic_thread_fence(std::memory_order_seq_cst);
        } else if (!make_room(both)) {
            retire(own, key.hash);
            return Published::refused;
        }
    }
}

// In the emptier bucket; null if both are full.
MappedBlocks::Cell *MappedBlocks::empty_cell(const std::array<Cell *, 2> &both,
                                             uint32_t empty) const {
    if (empty == 0) return nullptr;
    // How many each has, in a half.
    uint32_t n = empty - (empty >> 1 & 0x55555555);
    n = (n & 0x33333333) + (n >> 2 & 0x33333333);
    n = (n + (n >> 4)) & 0x0f0f0f0f;
    n = (n + (n >> 8)) & 0x00ff00ff;
    const bool second = n >> 16 > (n & 0xffff);
    return both[second] + __builtin_ctz(empty >> 16 * second);
}

// Empties a cell of two full buckets: one that leads nowhere, or that of their oldest block.
bool MappedBlocks::make_room(const std::array<Cell *, 2> &both) {
    uint32_t oldest = UINT32_MAX, number = 0;
    bool emptied = false;
    for (Cell *bucket : both)
        for (uint32_t i = 0; i < kCells; i++) {
            const uint32_t value = bucket[i].load(std::memory_order_relaxed);
            const uint32_t index = slot_of(value);
            const auto leads = [&] {
                if (index >= slots_ || state(slot(index).word.load()) != kPublished) return false;
                const uint64_t hash = key_in(index).hash;
                const auto own = buckets(hash);
                return cell_value(hash, index) == value && (own[0] == bucket || own[1] == bucket);
            };
            if (!leads()) {
                uint32_t seen = value, none = 0;
                emptied |= value == 0 || bucket[i].compare_exchange_strong(seen, 0);
                // A block may have come to the slot at this moment.
                if (leads()) bucket[i].compare_exchange_strong(none, value);
                continue;
            }
            const uint32_t age = ages_->get(index);
            if (age != MappedAges::kNone && (oldest == UINT32_MAX || ages_->older(age, number)))
                oldest = index, number = age;
        }
    if (emptied) return true;
    if (oldest == UINT32_MAX) return false;
    if (claim_oldest(oldest, number, ages_->stamp())) give_back(oldest);
    return true;
}

// ---- Keeping, dropping and moving -------------------------------------------------------------

// False: the block is gone, or is going.
bool MappedBlocks::pin(const Match &match, uint64_t bits) {
    Slot &s = slot(match.slot);
    uint64_t pins = s.pins.load();
    do {
        if (!are_of(pins, match.word) || (pins & kGoing) != 0) return false;
    } while (!s.pins.compare_exchange_weak(pins, pins | bits));
    ages_->set(match.slot, MappedAges::kNone);
    if (s.word.load() == match.word) return true;
    // It went at this moment. What gave way to another block may have left it its pins already.
    unpin(match, bits);
    return false;
}

// Of this block only, not of the next in its slot.
void MappedBlocks::unpin(const Match &match, uint64_t bits) {
    Slot &s = slot(match.slot);
    uint64_t pins = s.pins.load();
    while (are_of(pins, match.word) && (pins & kGoing) == 0 &&
           !s.pins.compare_exchange_weak(pins, pins & ~bits)) {}
    mend_age(match.slot);
}

// Pins the block of a key, for all that `bits` stand for. Nullopt: there is none.
std::optional<MappedBlocks::Match> MappedBlocks::pin_block(const Key &key, uint64_t bits) {
    for (;;) {
        const std::optional<Match> m = first_match(key);
        if (!m || pin(*m, bits)) return m;
        // Whoever takes it out may be dead.
        if (retire(*m, key.hash)) note_eviction(key.hash);
    }
}

// A block of a key gave way to another, which is to have the pins that it had.
void MappedBlocks::inherit(const Key &key, uint64_t bits) {
    if (bits != 0) pin_block(key, bits);
}

// A block that this process has written stays pinned only if its key is retained. `own` is where it
// was written; it may have given way to another since.
void MappedBlocks::settle_pin(const Key &key, std::optional<Match> own) {
    if (!pins_.empty() && pins_.contains(key.hash)) {
        pin_block(key, my_pin());
        return;
    }
    for (auto m = own ? own : first_match(key); m; m = first_match(key)) {
        unpin(*m, my_pin());
        if (slot(m->slot).word.load() == m->word) return;
    }
}

void MappedBlocks::retain(const uint8_t *keys, size_t n, int32_t *reasons, const int32_t *known) {
    std::map<uint64_t, uint32_t> spare;  // its nodes are used; nothing is allocated under the mutex
    for (size_t i = 0; i < n; i++) spare[i] = 0;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < n; i++) {
        const Key key = key_at(keys, i);
        int32_t reason = known != nullptr ? known[i] : kUnknown;
        if (reason <= 0) {
            std::optional<Match> m = first_match(key);
            if (m && m->generation >= generation()) m = pin_block(key, my_pin());
            if (reason == kUnknown)
                reason = !m                              ? reason_of_absence(key.hash)
                         : m->generation < generation() ? ROUTECAP_MISSING_STALE
                                                         : 0;
        }
        if (reasons != nullptr) reasons[i] = reason;
        if (reason != 0) {
            settle_pin(key);
            continue;
        }
        const auto pinned = pins_.find(key.hash);
        if (pinned != pins_.end()) {
            pinned->second++;
            continue;
        }
        auto node = spare.extract(spare.begin());
        node.key() = key.hash;
        node.mapped() = 1;
        pins_.insert(std::move(node));
    }
}

void MappedBlocks::release(const uint8_t *keys, size_t n) {
    std::map<uint64_t, uint32_t> gone;  // freed without the mutex
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < n; i++) {
        const Key key = key_at(keys, i);
        const auto pinned = pins_.find(key.hash);
        if (pinned == pins_.end() || --pinned->second > 0) continue;
        gone.insert(pins_.extract(pinned));
        settle_pin(key);
    }
}

bool MappedBlocks::evict(const uint8_t *key_bytes, bool as_if) {
    const Key key = key_at(key_bytes, 0);
    const std::lock_guard lock(mutex_);
    const bool there = drop(key);
    if (!there && as_if) note_eviction(key.hash);
    return there || as_if;
}

void MappedBlocks::give_way(const uint8_t *key_bytes) {
    const Key key = key_at(key_bytes, 0);
    const std::lock_guard lock(mutex_);
    while (const auto m = first_match(key))
        if (retire(*m, key.hash)) count(MappedCount::replaced, 1);
}

// Drops all blocks of a key. Whether there was one.
bool MappedBlocks::drop(const Key &key) {
    bool there = false;
    while (const auto m = first_match(key)) {
        if (!retire(*m, key.hash)) continue;
        if (!there) note_eviction(key.hash);
        there = true;
    }
    return there;
}

void MappedBlocks::move(const uint8_t *from, const uint8_t *to, Moves &moves) {
    auto &[in_flight, moved, pins, spare] = moves;
    const size_t n = moved.size();
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < n; i++) {
        const Key key = key_at(from, i);
        moved[i].slot = UINT32_MAX;
        while (const auto m = first_match(key)) {
            Slot &s = slot(m->slot);
            uint64_t word = m->word;
            if (moved[i].slot != UINT32_MAX) {
                retire(*m, key.hash);
            } else if (s.word.compare_exchange_strong(word, claimed_word(word))) {
                unlink(key.hash, m->slot);
                moved[i] = {m->slot, sum_of(word) ^ name_sum(key.hash, m->generation)};
            }
        }
        if (moved[i].slot == UINT32_MAX && !in_flight[i]) continue;
        evictions_->add(key.hash);
        pins[i] = pins_.extract(key.hash);
    }
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < n; i++) {
        const Key key = key_at(to, i);
        drop(key);
        if (moved[i].slot != UINT32_MAX) {
            Slot &s = slot(moved[i].slot);
            for (uint32_t w = 0; w < key_words_; w++)
                s.key[w].store(key.words[w], std::memory_order_relaxed);
            const uint64_t generation = s.generation.load(std::memory_order_relaxed);
            const uint64_t word =
                published_word(s.word.load(), moved[i].sum ^ name_sum(key.hash, generation));
            s.pins.store(pins_of(word, pinners(s.pins.load()) | my_pin()));
            s.word.store(word);
            ages_->set(moved[i].slot, MappedAges::kNone);
            if (link({nullptr, 0, moved[i].slot, word, generation}, key, {}) == Published::refused)
                note_eviction(key.hash);
        }
        // What retained the block still does, under its new key.
        if (!pins[i].empty()) {
            pins[i].key() = key.hash;
            auto inserted = pins_.insert(std::move(pins[i]));
            if (!inserted.inserted) {
                inserted.position->second += inserted.node.mapped();
                spare[i] = std::move(inserted.node);
            }
        }
        settle_pin(key);
    }
    end_replacing();
}

// ---- The dead ---------------------------------------------------------------------------------

// Frees what processes that have died had claimed and pinned.
void MappedBlocks::free_slots_of_dead() {
    claims_ = 0;
    for (uint32_t p = 0; p < MappedFile::kLocks; p++) {
        if (p == me_ || control_->attached[p].load() == 0 || file_.locked_by_other(p) ||
            !file_.lock(p))
            continue;
        sweep(p);
        control_->attached[p].store(0);
        file_.unlock(p);
    }
}

void MappedBlocks::sweep(uint32_t process) {
    const uint64_t bit = uint64_t{1} << process;
    for (uint32_t i = 0; i < slots_; i++) {
        Slot &s = slot(i);
        uint64_t word = s.word.load(), pins = s.pins.load();
        if ((state(word) == kClaimed && owner(word) == process) || state(word) == kStates) {
            const Key key = key_in(i);
            unlink(key.hash, i);
            // The block may have given way to another.
            if (are_of(pins, word - kClaimStep)) inherit(key, pinners(pins) & ~bit);
            if (s.word.compare_exchange_strong(word, next_claim(word) | kFree))
                ages_->set(i, MappedAges::kFree);
        }
        // What it was taking out stays.
        while ((pins & bit) != 0 && !s.pins.compare_exchange_weak(pins, pins & ~(bit | kGoing))) {}
        mend_age(i);
    }
    ages_->rebuild();
}

// Pins of this process of keys that it does not retain. There is one if a key was released at the
// moment in which another process gave it a new block, and with it the pins of the old one.
void MappedBlocks::drop_stray_pins() {
    for (uint32_t i = 0; i < slots_; i++) {
        const Slot &s = slot(i);
        const uint64_t word = s.word.load(), pins = s.pins.load();
        if (state(word) != kPublished || !are_of(pins, word) || (pinners(pins) & my_pin()) == 0)
            continue;
        const uint64_t hash = key_in(i).hash;
        std::atomic_thread_fence(std::memory_order_acquire);
        if (s.word.load() == word && !pins_.contains(hash))
            unpin({nullptr, 0, i, word, 0}, my_pin());
    }
}

MappedBlocks::Usage MappedBlocks::usage() {
    {
        const std::lock_guard lock(mutex_);
        free_slots_of_dead();
        drop_stray_pins();
    }
    Usage usage{};
    uint64_t ever = 0;
    for (uint32_t i = 0; i < slots_; i++) {
        const Slot &s = slot(i);
        const uint64_t word = s.word.load(std::memory_order_relaxed);
        ever += word != 0;
        if (state(word) != kPublished) continue;
        usage.blocks++;
        usage.retained += pinners(s.pins.load(std::memory_order_relaxed)) != 0;
    }
    // Free slots are taken in order, so as many were in use at once as were ever used.
    const uint64_t each = slot_bytes(config_);
    usage.bytes = usage.blocks * each;
    usage.bytes_peak = ever * each;
    usage.bytes_budget = slots_ * each;
    return usage;
}

}  // namespace routecap
