// Blocks in memory that several processes map: what publish, read and evict do, one after
// another, in one process and in several.
#include <array>
#include <map>
#include <set>

#include "mapped.h"

using namespace mapped;

namespace {

// Another sum makes another format: processes of two versions may not share a store then.
TEST(Checksum, is_that_of_the_format) {
    const auto of = [](size_t words, uint64_t seed) {
        return checksum(words, seed, [](size_t i) { return xxh64::kPrime1 * (i + 1); });
    };
    EXPECT_EQ(of(0, 0), 0u);
    EXPECT_EQ(of(1, 0), 15533123829280003956u);
    EXPECT_EQ(of(1, 1), 7549726702361966596u);
    EXPECT_EQ(of(3, 2654435761), 8417886751189612454u);
    EXPECT_EQ(of(4, 0), 11199924231025437355u);
    EXPECT_EQ(of(19, 2654435761), 16771694087386295679u);
}

TEST(Evictions, the_last_65536_are_known_and_no_others) {
    std::vector<MappedWord> cells(Evictions::kWords);
    MappedWord count{Evictions::kFirst};
    Evictions evictions(cells.data(), &count);
    for (uint64_t i = 0; i < 1000; i++) ASSERT_FALSE(evictions.has(mix(i)));
    constexpr uint64_t kMany = 3 * Evictions::kLast;
    for (uint64_t i = 0; i < kMany; i++) {
        evictions.add(mix(i));
        ASSERT_TRUE(evictions.has(mix(i)));
    }
    for (uint64_t i = 0; i < kMany; i++)
        ASSERT_EQ(evictions.has(mix(i)), i >= kMany - Evictions::kLast) << i;
    // One that goes again is young again.
    const uint64_t again = kMany - Evictions::kLast;
    evictions.add(mix(again));
    for (uint64_t i = 0; i + 1 < Evictions::kLast; i++) evictions.add(mix(kMany + i));
    EXPECT_TRUE(evictions.has(mix(again)));
    evictions.add(mix(2 * kMany));
    EXPECT_FALSE(evictions.has(mix(again)));
}

class Table : public testing::Test {
protected:
    Descriptor descriptor;
};

TEST_F(Table, the_tag_of_a_row_that_was_empty_is_that_of_the_row_that_fills_it) {
    Process a({}, descriptor);
    a.publish(1, 11, 0x1f);  // row 0 of five layers
    a.publish(1, 22, ~uint64_t{0x1f});
    Block expected = block_of(a.shape(), 4, 1, 11);
    const Block other = block_of(a.shape(), 4, 1, 22);
    std::copy_n(other.ids.begin(), a.shape().ids_bytes, expected.ids.begin());
    expected.tags[0] = other.tags[0];
    ASSERT_EQ(a.read(1), 0);
    EXPECT_EQ(a.read_rows(), expected);
}

TEST_F(Table, many_that_are_published_at_once_are_as_if_one_by_one) {
    const Options o{.key_bytes = 8, .blocks = 20};
    Process a(o, descriptor), b(o, descriptor);
    a.publish(2, 12);
    a.publish(3, 13, 0b11);
    // New ones, ones that are there, and one key twice.
    std::vector<uint64_t> keys = {1, 2, 3, 4, 5, 4, 6, 7}, seeds = {11, 12, 13, 14, 15, 14, 16, 17};
    const auto results = a.publish_many(keys, seeds);
    for (size_t i = 0; i < keys.size(); i++) {
        EXPECT_EQ(results[i], i == 1 || i == 5 ? MappedCount::repeated : MappedCount::published)
            << i;
        EXPECT_TRUE(b.has(keys[i], seeds[i])) << i;
    }
    EXPECT_EQ(a.blocks().usage().blocks, 7u);
    for (uint64_t first = 100; first < 200; first += 16) {
        for (uint64_t i = 0; i < 16; i++) keys.resize(16), keys[i] = first + i;
        for (const MappedCount result : b.publish_many(keys, keys))
            ASSERT_EQ(result, MappedCount::published);
        for (const uint64_t key : keys) ASSERT_TRUE(a.has(key, key));
    }
    EXPECT_EQ(a.blocks().usage().blocks, 20u);
}

// Of a pass more than the store has room for, the last stay.
TEST_F(Table, more_at_once_than_there_is_room_for) {
    const Options o{.blocks = 5};
    Process a(o, descriptor);
    std::vector<uint64_t> keys;
    for (uint64_t k = 0; k < 16; k++) keys.push_back(k);
    for (const MappedCount result : a.publish_many(keys, keys))
        EXPECT_EQ(result, MappedCount::published);
    uint64_t there = 0;
    for (const uint64_t k : keys) there += a.has(k, k);
    EXPECT_EQ(there, 5u);
    EXPECT_TRUE(a.has(15, 15));
    for (const uint64_t k : keys) EXPECT_TRUE(a.find(k) == 0 || a.find(k) == kEvicted);
}

TEST_F(Table, evict_drops_a_block_for_all) {
    Process a({}, descriptor), b({}, descriptor);
    a.publish(1, 1);
    EXPECT_FALSE(a.evict(2));
    EXPECT_TRUE(a.evict(1));
    EXPECT_EQ(b.read(1), kEvicted);
    EXPECT_EQ(a.blocks().usage().blocks, 0u);
    EXPECT_FALSE(a.evict(1));
    EXPECT_EQ(a.publish(1, 2), MappedCount::published);
    EXPECT_TRUE(b.has(1, 2));
}

TEST_F(Table, advancing_ends_older_blocks_for_all_and_never_goes_back) {
    const Options o{.blocks = 4};
    Process a(o, descriptor), b(o, descriptor);
    a.publish(1, 1);
    a.publish(2, 2);
    b.advance(5);
    EXPECT_EQ(a.is_at(), 5u);
    EXPECT_EQ(a.read(1), kStale);
    EXPECT_EQ(a.publish(3, 3), MappedCount::stale);
    a.generation = 5;
    EXPECT_EQ(a.read(1), kStale);
    EXPECT_EQ(a.publish(1, 100), MappedCount::published);
    b.generation = 5;
    EXPECT_TRUE(b.has(1, 100));
    a.advance(4);
    EXPECT_EQ(b.is_at(), 5u);
    // A stale block goes first.
    a.publish(4, 4);
    a.publish(6, 6);
    a.publish(7, 7);
    EXPECT_EQ(b.read(2), kEvicted);
    for (const uint64_t k : {4, 6, 7}) EXPECT_TRUE(b.has(k, k));
    EXPECT_TRUE(b.has(1, 100));
}

TEST_F(Table, keys_and_rows_of_any_size_do) {
    for (const uint32_t key_bytes : {8u, 9u, 15u, 16u, 33u, 64u})
        for (const uint32_t rows : {1u, 3u, 16u, 100u})
            for (const uint32_t experts : {30u, 300u}) {
                const Options o{.layers = 3,
                                .k = 3,
                                .experts = experts,
                                .block_rows = rows,
                                .key_bytes = key_bytes};
                Descriptor here;
                Process a(o, here), b(o, here);
                ASSERT_EQ(b.status, ROUTECAP_OK) << last_error();
                for (uint64_t k = 0; k < 100; k++) a.publish(k, k, k % 3);
                for (uint64_t k = 36; k < 100; k++) ASSERT_TRUE(b.has(k, k, k % 3)) << k;
                for (uint64_t k = 0; k < 36; k++) ASSERT_EQ(b.read(k), kEvicted);
                EXPECT_EQ(a.counted(MappedCount::damaged), 0u);
            }
}

TEST_F(Table, many_keys_are_read_at_once_and_holes_are_marked) {
    Process a({.blocks = 512}, descriptor);
    std::vector<uint64_t> numbers;
    for (uint64_t k = 0; k < 400; k++) {
        numbers.push_back(k);
        if (k % 3 != 0) a.publish(k, k, k % 5);
    }
    const auto keys = keys_of(16, numbers);
    Block all(a.shape(), 1600);
    std::vector<MappedBlocks::Found> found(400);
    a.blocks().find(keys.data(), kTags, found);
    a.blocks().read(keys.data(), kTags, found, all.planes());
    for (uint64_t k = 0; k < 400; k++) {
        ASSERT_EQ(found[k].reason, k % 3 != 0 ? 0 : kNotPublished);
        ASSERT_EQ(found[k].complete, k % 3 != 0 && k % 5 == 0);
        const RowPlanes at = all.planes().from(a.shape(), 4 * k);
        const Block one = block_of(a.shape(), 4, 1, k, k % 5);
        if (k % 3 != 0) {
            ASSERT_EQ(std::memcmp(at.ids, one.ids.data(), one.ids.size()), 0);
            ASSERT_EQ(std::memcmp(at.validity, one.validity.data(), one.validity.size()), 0);
            ASSERT_EQ(std::memcmp(at.tags, one.tags.data(), 32), 0);
        } else {
            for (uint64_t r = 0; r < 4; r++)
                ASSERT_EQ(a.shape().row_reason(at.ids + r * a.shape().ids_bytes,
                                               at.validity + r * a.shape().validity_bytes),
                          kNotPublished);
        }
    }
}

// The table as it should be, one call after another. It has so few slots that the hand finds one
// without a block if there is any.
struct Model {
    struct Held {
        uint64_t seed, missing, generation;
        size_t slot;
    };
    struct Slot {
        uint64_t key;
        bool full, used;
    };
    std::vector<Slot> slots;
    size_t hand = 0;
    uint64_t generation = 1;
    std::map<uint64_t, Held> blocks{};
    std::set<uint64_t> gone{};

    void use(uint64_t key) { slots[blocks.at(key).slot].used = true; }
    void drop(uint64_t key) {
        slots[blocks.at(key).slot].full = false;
        blocks.erase(key);
    }
    void evict(uint64_t key) {
        gone.insert(key);
        drop(key);
    }
    // Second chance, unless a slot is free.
    void take_slot() {
        bool found = false;
        size_t taken = 0;
        for (size_t visits = 0, at = hand; visits < slots.size() || !found; visits++) {
            at = (at + 1) % slots.size();
            Slot &s = slots[at];
            if (found && s.full) continue;
            const bool goes = !s.full || blocks.at(s.key).generation < generation || !s.used;
            if (goes)
                taken = at, found = true;
            else
                s.used = false;
            if (!s.full) break;
        }
        hand = taken;
        if (slots[taken].full) evict(slots[taken].key);
    }
    void store(uint64_t key, uint64_t seed, uint64_t missing) {
        take_slot();
        if (blocks.contains(key)) drop(key);
        blocks[key] = {seed, missing, generation, hand};
        slots[hand] = {key, true, true};
    }
    int32_t reason(uint64_t key) const {
        const auto b = blocks.find(key);
        if (b == blocks.end()) return gone.contains(key) ? kEvicted : kNotPublished;
        return b->second.generation == generation ? 0 : kStale;
    }
};

// Whether two blocks of two rows of two layers have other experts in a cell that both have.
bool differ(const Shape &shape, uint64_t seed, uint64_t other, uint64_t missing) {
    for (uint32_t i = 0; i < 4; i++) {
        std::array<uint8_t, 2> a, b;
        put_cell(shape, a.data(), seed, i / 2, i % 2);
        put_cell(shape, b.data(), other, i / 2, i % 2);
        if ((missing >> i & 1) == 0 && std::minmax(a[0], a[1]) != std::minmax(b[0], b[1]))
            return true;
    }
    return false;
}

TEST_F(Table, random_calls_of_three_processes_agree_with_a_model) {
    for (uint32_t seed = 0; seed < 20; seed++) {
        SCOPED_TRACE(seed);
        const Options o{.layers = 2,
                        .k = 2,
                        .experts = 20,
                        .block_rows = 2,
                        .key_bytes = 8,
                        .blocks = 12 + seed};
        Descriptor here;
        std::vector<std::unique_ptr<Process>> processes;
        for (int p = 0; p < 3; p++) processes.push_back(std::make_unique<Process>(o, here));
        Model model{.slots = std::vector<Model::Slot>(o.blocks)};
        std::mt19937 random(seed);
        const auto any_key = [&] { return random() % (2 * o.blocks); };
        for (int step = 0; step < 3000; step++) {
            const int p = static_cast<int>(random() % 3);
            Process &process = *processes[static_cast<size_t>(p)];
            process.generation = model.generation;
            const uint64_t key = any_key();
            switch (random() % 11) {
                case 0: {
                    if (random() % 20 != 0) break;
                    model.generation += 1 + random() % 3;
                    process.advance(model.generation);
                    break;
                }
                case 1: {
                    ASSERT_EQ(process.evict(key), model.blocks.contains(key));
                    if (model.blocks.contains(key)) model.evict(key);
                    break;
                }
                case 2:
                case 3:
                case 4:
                case 5: {
                    ASSERT_EQ(process.read(key), model.reason(key)) << step;
                    if (model.reason(key) != 0) break;
                    const auto &b = model.blocks.at(key);
                    ASSERT_EQ(process.read_rows(),
                              block_of(process.shape(), 2, b.generation, b.seed, b.missing));
                    model.use(key);
                    break;
                }
                default: {
                    const uint64_t missing = random() % 3 == 0 ? random() % 15 : 0,
                                   wrong = random() % 10 == 0;
                    const uint64_t block_seed = key * 2 + model.generation * 1000 + wrong;
                    const auto b = model.blocks.find(key);
                    const bool meets =
                        b != model.blocks.end() && b->second.generation == model.generation;
                    // What one seed lacks another does not fill here.
                    if (meets && b->second.seed != block_seed && (b->second.missing & ~missing))
                        break;
                    const auto result = process.publish(key, block_seed, missing);
                    if (meets) {
                        const uint64_t filled = b->second.missing & missing;
                        ASSERT_EQ(process.mismatched,
                                  differ(process.shape(), b->second.seed, block_seed,
                                         b->second.missing | missing));
                        if (filled == b->second.missing) {
                            ASSERT_EQ(result, MappedCount::repeated);
                            model.use(key);
                            break;
                        }
                        ASSERT_EQ(result, MappedCount::published);
                        model.store(key, block_seed, filled);
                        break;
                    }
                    ASSERT_EQ(result, MappedCount::published) << step;
                    model.store(key, block_seed, missing);
                }
            }
            if (step % 50 != 0) continue;
            ASSERT_EQ(process.blocks().usage().blocks, model.blocks.size()) << step;
            for (uint64_t k = 0; k < 2 * o.blocks; k++)
                ASSERT_EQ(process.find(k), model.reason(k)) << "step " << step << " key " << k;
        }
        ASSERT_EQ(processes[0]->counted(MappedCount::damaged), 0u);
    }
}

}  // namespace
