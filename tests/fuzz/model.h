// A capturer as simple as it can be, written from the header alone: maps of rows, and a log of what
// was called and has not been applied. It predicts ids, reasons, tags, statuses, lengths and
// counters exactly, for a budget that is never reached. What lands, lands when land() is called:
// that is manual progress; called after every operation it is what any capturer shows once nothing
// is in flight.
#pragma once

#include <routecap.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace model {

// ---- Rows and routings ---------------------------------------------------------------------

// A valid cell has from `least` to k distinct experts.
struct Layer {
    int32_t index;
    uint32_t experts;
    int32_t provenance;
    uint32_t k, least;
    uint32_t visit = 0;
    // What names it: layers ascend by this.
    std::pair<int32_t, uint32_t> key() const { return {index, visit}; }
    // Whether it is the same layer as another, but for its provenance.
    bool same(const Layer &o) const {
        return key() == o.key() && experts == o.experts && k == o.k && least == o.least;
    }
};
// A column of a cell that no expert has. In a row every column after the last expert holds it.
constexpr uint16_t kUnused = UINT16_MAX;

struct Shape {
    std::vector<Layer> layers;
    uint32_t k = 1;  // columns of a cell
    int32_t id_space = 0;
    int32_t weights = 0;  // their dtype; 0: there are none
    size_t cells() const { return layers.size(); }
    uint32_t experts() const;  // the most of any layer
    bool fewer() const;        // whether a cell may have unused columns
    // One byte holds 256 ids, and one of its values is that of an unused column if there are such.
    size_t id_bytes() const { return experts() + fewer() <= 256 ? 1 : 2; }
    int32_t dtype() const { return id_bytes() == 1 ? ROUTECAP_DTYPE_U8 : ROUTECAP_DTYPE_I16; }
    uint16_t in_memory(uint16_t id) const {
        return id_bytes() == 1 ? static_cast<uint8_t>(id) : id;
    }
    // Bytes of a row in the serialised form, and where its weights begin.
    size_t stride() const;
    size_t weights_begin() const;
    // Whether two rows are alike, but for their layers.
    bool same(const Shape &o) const {
        return k == o.k && id_space == o.id_space && weights == o.weights;
    }
    // The same with their layers, but for their provenance.
    bool matches(const Shape &o) const;
    // Whether rows like these take rows like the others: none that are recomputed for captured.
    bool takes(const Shape &o) const;
    // The weights of a valid cell with so many experts, of which these were given (NULL: none): a
    // cell without experts lacks none, and one NaN spoils all.
    std::optional<std::vector<uint32_t>> weigh(size_t experts,
                                               const std::vector<uint32_t> *given) const;
    std::vector<uint8_t> record(const struct Row &row) const;
};
using ShapePtr = std::shared_ptr<const Shape>;

// The place of a reason in the header's list, where the highest stands first: of two reasons for
// one cell that one stays.
int rank(uint8_t reason);
// Reasons of whole rows that are not there. The others belong to cells of rows that are.
bool of_whole_rows(uint8_t reason);

// One row, which is there or not. A cell that is missing has its reason for its first id, then
// zeros.
struct Row {
    uint64_t tag = 0;
    std::vector<uint16_t> ids;     // [layers, k]
    std::vector<uint8_t> missing;  // [layers] 0, or ROUTECAP_MISSING_*
    // By layer: the bits of k weights of a valid cell that has them. 0 where no expert is.
    std::map<size_t, std::vector<uint32_t>> weights{};
    bool valid(size_t layer) const { return missing[layer] == 0; }
    bool any() const;
    bool complete() const;
    bool there() const;      // some cell says more than that there is no row
    uint8_t reason() const;  // why the whole row is not there; 0 if cells say different things
    bool same_set(const Row &other, size_t layer) const;
};
using RowPtr = std::shared_ptr<const Row>;  // null: nothing is known of the row
using Rows = std::map<uint64_t, RowPtr>;    // by position

// A cell of a layer's columns that are all written, with ROUTECAP_NO_EXPERT where there is no
// expert: 0, or why it is missing.
uint8_t judge(const std::vector<int64_t> &cell, const Layer &layer);
// A row without a valid cell, all for one reason.
std::shared_ptr<Row> empty_row(const Shape &shape, uint8_t reason);
// Of two rows of one position the first's valid cells, then the second's; of two reasons the one
// that stands first. The tag is that of the first valid cell; without any, that of the first row
// that is there. Either may be null.
RowPtr unite(const RowPtr &first, const RowPtr &second);

struct Capturer;

struct Routing {
    ShapePtr shape;
    uint64_t first = 0, rows = 0;
    Rows content{};
    const Capturer *pending = nullptr;  // of finish, while steps before it are in flight
    uint64_t after = 0;                 // then: the last of them

    uint64_t end() const { return first + rows; }
    RowPtr at(uint64_t position) const;
    int32_t status() const;
    int32_t strict(uint32_t flags) const;  // what reading with these flags answers
    routecap_coverage coverage(uint64_t length, std::vector<routecap_missing> &blocks) const;
    Routing part(uint64_t first, uint64_t rows) const;
    Routing of_layers(size_t first_layer, size_t layers) const;
    std::vector<uint8_t> serialize() const;
};
using RoutingPtr = std::shared_ptr<Routing>;

// Returns a status, and the routing if that is one of success.
int32_t merge(const std::vector<RoutingPtr> &routings, RoutingPtr &merged);
// What a splice of their serialised forms holds; null if their shapes differ.
RoutingPtr splice(const Routing &head, const Routing &tail, uint64_t row);

// Bytes of an element, by ROUTECAP_DTYPE_*; 4 of what is none.
size_t element_bytes(int32_t dtype);
bool of_weights(int32_t dtype);
// Whether the bits of a weight are those of no number.
bool is_nan(uint32_t bits, int32_t dtype);
float widened(uint32_t bits, int32_t dtype);

// What copying a routing out comes to.
struct Copied {
    int32_t refusal = 0;           // what the options alone are refused with
    uint64_t needed = UINT64_MAX;  // bytes
    uint64_t mask_needed = 0;
    bool weights = false;  // or ids
    Routing routing{};     // the layers that are copied
    std::vector<std::pair<uint64_t, std::pair<uint64_t, size_t>>>
        cells{};  // place, position, layer

    int32_t status(uint32_t flags) const;  // if the buffers are large enough
    void write(const routecap_copy_options &o, uint8_t *dst, uint8_t *mask) const;
};
Copied copied(const routecap_copy_options &o, bool masked, const Routing &whole);
Copied copied_weights(const routecap_copy_options &o, const Routing &whole);

// ---- The sink ------------------------------------------------------------------------------

// What one forward pass writes, on the host backend.
class Sink {
public:
    // External: no layer has memory until it is bound.
    Sink(ShapePtr shape, uint32_t rows, bool external = false)
        : shape_(std::move(shape)),
          rows_(rows),
          memory_(shape_->cells(), external ? Memory::kNone : Memory::kAll),
          written_(shape_->cells()),
          weights_(shape_->cells()),
          known_(shape_->cells()) {}

    // Memory of the engine, with some for weights or without.
    void bind(uint32_t first_layer, uint32_t layers, bool weights) {
        for (uint32_t l = first_layer; l < first_layer + layers; l++)
            memory_[l] = weights ? Memory::kAll : Memory::kIds;
    }
    bool has_memory(uint32_t layer) const { return memory_[layer] != Memory::kNone; }
    int32_t begin(uint32_t rows);
    // Records into layers, all or none; each with its ids and table.
    int32_t record(const routecap_source &source, const std::vector<routecap_layer_source> &layers);
    // A router's own write, of a row that may be written, in the layer's own columns.
    bool writable(uint32_t layer, uint32_t row) const {
        return row < begun_.value_or(0) && snapshots_ == 0 && written_[layer].count(row) == 0;
    }
    void write(uint32_t layer, uint32_t row, std::vector<int64_t> ids,
               std::optional<std::vector<uint32_t>> weights = {}) {
        written_[layer][row] = std::move(ids);
        if (weights) weights_[layer][row] = *std::move(weights);
    }
    void snapshot();
    int32_t probe(uint32_t rows, std::vector<routecap_layer_probe> &layers) const;

    struct Taken {
        std::vector<RowPtr> rows;
        uint64_t dropped = 0, conflicts = 0;
    };
    // After issue or discard: what the snapshot took, and nothing is begun.
    Taken take();
    bool begun() const { return begun_.has_value(); }
    uint32_t rows() const { return rows_; }

private:
    // Where rows go. Cells have the layer's columns each.
    struct Placement {
        uint32_t rows, first_row;
        const int32_t *live_rows, *row_base, *row_index;
    };
    int32_t check(uint32_t layer, const Placement &to) const;
    int32_t check_weights(const routecap_source &source,
                          const std::vector<routecap_layer_source> &layers) const;
    void put(uint32_t layer, const Placement &to,
             const std::function<std::vector<int64_t>(uint32_t row)> &cell,
             const std::function<std::vector<uint32_t>(uint32_t row)> &weights);

    enum class Memory { kNone, kIds, kAll };

    ShapePtr shape_;
    uint32_t rows_;
    std::vector<Memory> memory_;  // of each layer
    std::optional<uint32_t> begun_;
    std::vector<std::map<uint32_t, std::vector<int64_t>>> written_;   // of each layer, by row
    std::vector<std::map<uint32_t, std::vector<uint32_t>>> weights_;  // of those with weights
    // Of each layer, rows whose recording the host knows of.
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> known_;
    // Since the last begin or snapshot.
    uint64_t dropped_ = 0, conflicts_ = 0;
    uint32_t snapshots_ = 0;
    Taken taken_;
};

// ---- Requests and steps --------------------------------------------------------------------

constexpr int kUncounted = -1;  // in the place of a phase

// One row of a span: where it goes, and what its step holds for it.
struct Filed {
    uint64_t real;        // its position
    uint64_t first, end;  // bounds of it that the host knows
    uint64_t span;        // the first position of its span
    uint32_t sink_row = 0;
    RowPtr row{};  // null: not in the snapshot
    uint64_t tag = 0;
    int phase = ROUTECAP_PHASE_DECODE;  // or kUncounted
    bool device = false;                // its position is on the device
    bool known = true;          // the host knows where it is: from the start, or since it landed
    uint8_t never = 0;          // why it is not filed: ROUTECAP_MISSING_LOST or _REFUSED
    bool nowhere = false;       // landed or settled, and counted as unplaced, late or rejected
    bool unplaced = false;      // outside its bounds
    uint64_t cut = UINT64_MAX;  // rows from there on were cut by a truncate after it was issued
    uint64_t cut_first = UINT64_MAX;  // the same before its accept: then it never counts
    // And are not filed when they land: the same, but for those that a child is to have.
    uint64_t late = UINT64_MAX;
    uint64_t reach() const;  // one past the highest position that it may have; 0 if it has none
};
using FiledPtr = std::shared_ptr<Filed>;

struct Request {
    int32_t policy = ROUTECAP_POLICY_KEEP;
    Rows content{};  // rows that were filed or attached
    // And what is known at once of others: LOST, REFUSED or TAKEN.
    std::map<uint64_t, uint8_t> reasons{};
    std::map<uint64_t, std::vector<FiledPtr>> drafts{};  // by ticket, as they were issued
    // What the length is made of, in the order of the calls: a number that is certain, then rows
    // and cuts.
    struct Reach {
        std::vector<FiledPtr> rows;
        uint64_t at_least = 0, cut = UINT64_MAX;
    };
    std::vector<Reach> reaches{};
    // One past the highest position that was issued and is not cut.
    uint64_t issued_end = 0;
    // What was called and is not applied: rows that change, rows that are cut, and rows of steps up
    // to one that children or stores are to have.
    struct Range {
        uint64_t first, end;
    };
    struct Lending {
        uint64_t first, end, step;
    };
    std::list<Range> changes{};
    std::list<uint64_t> cuts{};
    std::list<Lending> lendings{};
    uint64_t inherited = 0;  // a step of another request that changes wait for

    uint64_t length() const;
    uint64_t issued() const;  // one past the last row, drafts included
    void reached(Reach reach);
    void note(uint8_t reason, uint64_t first, uint64_t end);
    std::vector<FiledPtr> waiting() const;                              // drafts
    Rows rows(const Shape &shape, uint64_t first, uint64_t end) const;  // both
};
using RequestPtr = std::shared_ptr<Request>;

// One span as issue was given it; a null request is unknown. `status` is its status:
// ROUTECAP_ERR_NO_MEMORY if it was refused.
struct Span {
    RequestPtr request;
    routecap_span span;
    int32_t status = ROUTECAP_OK;
};

// ---- The store -----------------------------------------------------------------------------

// What was published under one key. Its rows come when they land; they do not change then.
struct Block {
    uint64_t key;
    uint64_t generation;           // of its publisher; landed: the least tag of its rows
    bool landed = false;           // those who adopted it get its rows
    bool stale = false;            // those who adopted it hear that
    bool unwanted = false;         // it lost its key while it was in flight
    int retained = 0;              // how often
    const Capturer *of = nullptr;  // in flight: whose steps it waits for
    uint64_t after = 0;            // and the last of them
    std::vector<RowPtr> rows{};
};
using BlockPtr = std::shared_ptr<Block>;

// For a budget that is never reached.
struct Store {
    bool slots;
    uint32_t block_rows;
    uint64_t generation = 0;
    std::map<uint64_t, BlockPtr> blocks{};  // by key; also some in flight
    std::set<uint64_t> gone{};              // keys of blocks that went
    routecap_store_counts counts{};

    bool current(const Block &block) const { return block.generation >= generation; }
    // What an adopter hears who is at this generation: 0 if there is a block.
    uint8_t why(uint64_t key, uint64_t at) const;
    void note(const BlockPtr &block);  // that it is published
    void land(const Shape &shape, const BlockPtr &block, std::vector<RowPtr> rows);
    void evict(uint64_t key);
    uint8_t retain(uint64_t key);  // 0, or why it is not there
    void release(uint64_t key);

    struct Kept {
        uint64_t in_flight = 0, retained = 0;
    };
    Kept kept() const;

private:
    BlockPtr unlink(uint64_t key);
};
using StorePtr = std::shared_ptr<Store>;

// How often each expert was chosen, by phase, layer and expert.
struct Load {
    uint64_t steps = 0, first_step = 0, last_step = 0;
    uint64_t rows[ROUTECAP_LOAD_PHASES] = {};
    std::vector<uint64_t> counts{};  // [phases, layers, experts]; empty: none
};

struct Capturer {
    Capturer(ShapePtr s, uint32_t sl, uint32_t f, uint32_t requests)
        : shape(std::move(s)),
          slots(sl),
          flags(f),
          max_requests(requests),
          layer_stats(shape->cells()) {}

    ShapePtr shape;
    uint32_t slots, flags, max_requests;
    routecap_stats stats{};
    std::vector<routecap_layer_stats> layer_stats;
    Load load{};

    // Steps.
    uint64_t in_flight() const;
    bool full() const { return in_flight() >= slots; }
    // On the host backend begin files the oldest step if they are full, unless it may lose steps.
    // False if it did, and if operations wait beside steps, of which the header does not say how
    // many it applies.
    bool make_room_for_begin(bool files);
    // Positions of the sink rows where spans need them. Returns the status of the call (the spans'
    // own are theirs).
    int32_t issue(const std::vector<Span> &spans, const std::vector<int64_t> &positions,
                  uint64_t tag, const Sink::Taken &taken, bool lost, uint64_t &ticket);
    int32_t poll(uint64_t ticket) const;
    uint64_t conflicting(uint64_t ticket) const;
    // Of a step that was issued without its rows: what its pass wrote, and where that belongs.
    void arrive(uint64_t ticket, const std::vector<RowPtr> &rows,
                const std::vector<int64_t> &positions);
    void lose(uint64_t ticket);  // the rows of a step in flight, without drafts, will not come
    // Files the steps before this one, and applies what waits for none from it on.
    void land(uint64_t first_in_flight = UINT64_MAX);

    // Requests.
    bool room(uint64_t count) const { return stats.requests_open + count <= max_requests; }
    RequestPtr open(int32_t policy);
    int32_t accept(const RequestPtr &r, uint64_t ticket, const uint32_t *rows, uint64_t count);
    void truncate(const RequestPtr &r, uint64_t rows);
    int32_t fork(const RequestPtr &r, uint64_t rows, RequestPtr &child);
    int32_t attach(const RequestPtr &r, const RoutingPtr &routing, uint64_t rows);
    int32_t publish(const RequestPtr &r, const StorePtr &store, uint64_t first,
                    const std::vector<uint64_t> &keys, uint64_t generation);
    int32_t adopt(const RequestPtr &r, Store &store, uint64_t first,
                  const std::vector<uint64_t> &keys, uint64_t generation, routecap_adoption &found);
    RoutingPtr finish(const RequestPtr &r, uint64_t rows);
    void close(const RequestPtr &r);
    // Reads rows, ALL and LANDED included; a negative status if that is refused.
    int32_t read(const RequestPtr &r, uint64_t first, uint64_t rows, bool take,
                 Routing &routing) const;
    int32_t extract(const RequestPtr &r, uint64_t first, uint64_t rows, int32_t mode,
                    uint32_t flags, RoutingPtr &routing);

private:
    struct Step {
        uint64_t ticket;
        struct Part {
            RequestPtr request;
            std::vector<FiledPtr> rows;
            bool speculative;
        };
        std::vector<Part> parts;
        uint64_t dropped, conflicts, tag;
        bool gone = false;
    };
    struct Entry {
        std::shared_ptr<Step> step;   // or
        std::function<void()> apply;  // a change of a request
        uint64_t after;               // once this step is filed
    };
    void change(const RequestPtr &r, const std::vector<Request::Range> &rows,
                std::function<void()> apply);
    uint64_t after(const RequestPtr &r) const;  // the step that a change waits for
    void lend(const RequestPtr &r, uint64_t first, uint64_t end, std::function<void()> apply);
    void cut_in_flight(const RequestPtr &r, uint64_t end);
    uint64_t newest_step(const RequestPtr &r) const;
    void land(Step &step);
    void land_lost(const Step &step);
    void count_cells(const Filed &filed, std::vector<bool> &written, std::vector<bool> &valid);
    void file(Request &r, const Filed &filed);
    void count_load(const Filed &filed, const RowPtr &known);
    // Drafts that wait are dropped at the request's end: `late` says of which rows that is late,
    // and not rejected.
    void drop_drafts(const std::vector<FiledPtr> &drafts,
                     const std::function<bool(const Filed &)> &late);

    std::vector<Entry> log_;
    std::map<uint64_t, int32_t> steps_;         // by ticket
    std::map<uint64_t, uint64_t> conflicting_;  // where there were some
};

}  // namespace model
