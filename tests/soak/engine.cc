#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>

#include "../fuzz/check.h"
#include "../support/views.h"

namespace soak {

thread_local const Sequence *examined = nullptr;

namespace {

unsigned long long ull(uint64_t n) { return n; }

uint64_t mix(uint64_t x) {
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32, x *= 0x94d049bb133111ebu;
    return x ^ x >> 29;
}

// The ids of a token in a layer's columns, all different, and ROUTECAP_NO_EXPERT after them.
// `drift`: as another kernel would compute them.
std::vector<int64_t> route(const Shape &shape, uint64_t token, uint32_t layer, bool drift) {
    const uint64_t x = mix(token + layer * 0x9e3779b97f4a7c15u + drift);
    const uint64_t stride = 1 + (x >> 32) % (shape.experts / shape.k);
    const uint32_t most = shape.most(layer);
    const uint64_t used = most - mix(x) % (most - shape.least(layer) + 1);
    std::vector<int64_t> ids;
    uint64_t id = x % shape.experts;
    for (uint32_t c = 0; c < most; c++, id += stride) {
        if (id >= shape.experts) id -= shape.experts;
        ids.push_back(c < used ? static_cast<int64_t>(id) : ROUTECAP_NO_EXPERT);
    }
    return ids;
}

// The keys of the blocks of which all rows are there, as an engine's block hashes are made.
std::vector<uint64_t> block_keys(const std::vector<uint64_t> &tokens, size_t rows,
                                 uint32_t block_rows) {
    std::vector<uint64_t> keys;
    uint64_t key = 1;
    for (size_t i = 0; i < rows / block_rows * block_rows; i++) {
        key = mix(key + mix(tokens[i]));
        if ((i + 1) % block_rows == 0) keys.push_back(key);
    }
    return keys;
}

}  // namespace

std::string Shape::text() const {
    char text[240];
    std::snprintf(
        text, sizeof text,
        "%u layers, k %u%s, %u experts, weights %d, %u rows, %u slots, dtype %d, tap %d, policy %d, %llu pages%s, %u sequences%s%s",
        layers, k, fewer ? " or fewer" : "", experts, weights, rows, slots, dtype, tap, policy,
        ull(pages), attaches ? "" : " without prefixes", sequences, may_lose ? ", may lose" : "",
        store ? ", a store" : "");
    return text;
}

Engine::Engine(const Shape &shape, uint64_t seed, bool graphs, Totals &totals)
    : shape_(shape), random_(seed), graphs_(graphs), totals_(totals) {
    routecap_config config;
    SAME_STATUS(ROUTECAP_OK, routecap_config_init(&config, sizeof config));
    config.backend = rig::backend();
    config.layers = shape.layers, config.k = shape.k, config.experts = shape.experts,
    config.rows = shape.rows, config.slots = shape.slots;
    config.sink_dtype = shape.tap == 2 && shape.dtype != ROUTECAP_DTYPE_U32 &&
                                shape.dtype != ROUTECAP_DTYPE_ID16_BF16
                            ? shape.dtype
                            : ROUTECAP_DTYPE_I32;
    std::vector<int32_t> map;
    std::vector<uint32_t> most, least, visit;
    model_shape_ = std::make_shared<model::Shape>();
    model_shape_->k = shape.k, model_shape_->weights = config.weights_dtype = shape.weights;
    for (uint32_t l = 0; l < shape.layers; l++) {
        map.push_back(static_cast<int32_t>(shape.fewer ? l / 2 : l));
        visit.push_back(shape.fewer ? l % 2 : 0);
        most.push_back(shape.most(l)), least.push_back(shape.least(l));
        model_shape_->layers.push_back(
            {map[l], shape.experts, ROUTECAP_PROVENANCE_CAPTURED, most[l], least[l], visit[l]});
    }
    if (shape.fewer)
        config.layer_map = map.data(), config.layer_visit = visit.data(),
        config.layer_k = most.data(), config.layer_min_k = least.data();
    config.flags = (shape.tap == 3 ? ROUTECAP_CONFIG_EXTERNAL_SINK : 0) |
                   (shape.may_lose ? ROUTECAP_CONFIG_MAY_LOSE : 0) | ROUTECAP_CONFIG_LOAD;
    memory_.struct_size = sizeof memory_;
    SAME_STATUS(ROUTECAP_OK, routecap_config_memory(&config, &memory_));
    config.budget_bytes = shape.pages * memory_.page_bytes;
    SAME_STATUS(ROUTECAP_OK, routecap_capturer_create(&config, &capturer_));
    model_ = std::make_unique<model::Capturer>(model_shape_, shape.slots, 0, UINT32_MAX);
    if (shape.store) create_store(config);
    ids_ = static_cast<unsigned char *>(
        device_.allocate(size_t{shape.layers} * shape.rows * shape.k * 8));
    weights_ = static_cast<unsigned char *>(
        device_.allocate(size_t{shape.layers} * shape.rows * shape.k * 4));
    live_ = static_cast<int32_t *>(device_.allocate(sizeof *live_));
    positions_ = static_cast<int64_t *>(device_.allocate(shape.rows * sizeof *positions_));
    for (uint32_t l = 0; shape.tap == 3 && l < shape.layers; l += shape.fewer ? 1 : shape.layers) {
        routecap_sink sink{};
        sink.struct_size = sizeof sink, sink.dtype = ROUTECAP_DTYPE_I32;
        const size_t at = size_t{l} * shape.rows * shape.k;
        sink.ids = ids_ + at * 4, sink.rows = shape.rows, sink.k = shape.most(l);
        sink.row_stride = shape.k, sink.weights_dtype = shape.weights;
        if (shape.weights != 0) sink.weights = weights_ + at * model::element_bytes(shape.weights);
        SAME_STATUS(ROUTECAP_OK,
                    routecap_sink_bind(capturer_, l, shape.fewer ? 1 : shape.layers, &sink));
    }
}

Engine::~Engine() {
    device_.synchronize();
    captured_.clear();
    routecap_capturer_destroy(capturer_);
    routecap_store_free(store_);
}

void Engine::create_store(const routecap_config &config) {
    routecap_store_config &store = store_config_;
    SAME_STATUS(ROUTECAP_OK, routecap_store_config_init(&store, sizeof store));
    store.block_rows = shape_.block_rows, store.key_bytes = 8;
    SAME_STATUS(ROUTECAP_OK, routecap_store_create(&store, &config, &store_));
    blocks_ = std::make_shared<model::Store>(
        model::Store{.slots = false, .block_rows = shape_.block_rows});
}

void Engine::note(const SequencePtr &s, const char *format, ...) {
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    const int head = std::snprintf(text, sizeof text, "step %llu: ", ull(last_step_ + 1));
    std::vsnprintf(text + head, sizeof text - static_cast<size_t>(head), format, arguments);
    va_end(arguments);
    examined = s.get();
    const std::lock_guard lock(s->mutex);
    s->history.emplace_back(text);
}

bool Engine::done(const char *call, int32_t expected, int32_t status) {
    if (shape_.pages != 0 && status == ROUTECAP_ERR_NO_MEMORY) return false;
    check::status(call, expected, status);
    return true;
}

// ---- Sequences -----------------------------------------------------------------------------

SequencePtr Engine::make(size_t tokens) {
    auto s = std::make_shared<Sequence>();
    s->number = ++numbers_;
    for (size_t i = 0; i < tokens; i++) s->tokens.push_back(random_());
    s->guesses = chance(400);
    s->streams = fault(150);  // rows that are taken are published by nobody
    return s;
}

// From now on readers may look at it.
void Engine::start(const SequencePtr &s) {
    totals_.requests++;
    const std::lock_guard lock(mutex_);
    running_.push_back(s);
}
void Engine::stop(const SequencePtr &s) {
    const std::lock_guard lock(mutex_);
    std::erase(running_, s);
}

void Engine::arrive() {
    const SequencePtr s = make(1 + below(chance(100) ? 700 : 120));
    s->prompt = s->tokens.size();
    s->last = s->prompt + 1 + below(chance(100) ? 300 : 60);
    const routecap_open_options options{sizeof options, shape_.policy};
    if (!done("open", ROUTECAP_OK, routecap_request_open(capturer_, &options, &s->handle, 1)))
        return;
    s->request = model_->open(shape_.policy);
    note(s, "open %llx, a prompt of %zu, %zu in all", ull(s->handle), s->prompt, s->last);
    if (shape_.attaches && !prefixes_.empty() && chance(400)) {
        // Its prompt begins as that of another did, which is in the prefix cache.
        const Result &prefix = prefixes_[below(prefixes_.size())];
        const size_t rows =
            1 + below(std::min({s->prompt, static_cast<size_t>(prefix.expected->end()),
                                prefix.sequence->tokens.size()}));
        if (done("attach", ROUTECAP_OK,
                 routecap_request_attach(capturer_, s->handle, prefix.routing, rows))) {
            SAME(ROUTECAP_OK, model_->attach(s->request, prefix.expected, rows));
            model_->land();
            std::copy_n(prefix.sequence->tokens.begin(), rows, s->tokens.begin());
            s->computed = std::min(rows, s->prompt - 1);
            note(s, "attach %zu rows of sequence %llu", rows, ull(prefix.sequence->number));
            totals_.attached++;
        }
    }
    if (store_ != nullptr && s->request->length() == 0 && chance(700)) adopt(s);
    start(s);
}

// Its prompt begins as what another published did.
void Engine::adopt(const SequencePtr &s) {
    if (!published_.empty()) {
        const std::vector<uint64_t> &tokens = published_[below(published_.size())];
        std::copy_n(tokens.begin(), below(std::min(tokens.size(), s->prompt)) + 1,
                    s->tokens.begin());
    }
    const std::vector<uint64_t> keys = block_keys(s->tokens, s->prompt, shape_.block_rows);
    // A block with stale rows is found until it lands, and in the model it lands at once.
    if (std::exchange(stale_in_flight_, false)) settled();
    routecap_adoption found{}, expected{};
    found.struct_size = expected.struct_size = sizeof found;
    note(s, "adopt %zu blocks", keys.size());
    SAME_STATUS(ROUTECAP_OK, routecap_request_adopt(capturer_, s->handle, store_, 0, keys.data(),
                                                    keys.size(), blocks_->generation, &found));
    SAME(ROUTECAP_OK, model_->adopt(s->request, *blocks_, 0, keys, blocks_->generation, expected));
    model_->land();
    SAME(expected.rows, found.rows);
    SAME(expected.found, found.found);
    SAME(expected.evicted, found.evicted);
    SAME(expected.not_published, found.not_published);
    SAME(expected.stale, found.stale);
    s->computed = std::min<size_t>(found.rows, s->prompt - 1);
    totals_.adopted += found.found;
}

// The blocks that are full, of which some are in flight: those that it has not published, or all
// once more.
void Engine::publish(const SequencePtr &s, size_t rows) {
    std::vector<uint64_t> keys = block_keys(s->tokens, rows, shape_.block_rows);
    const size_t done = chance(100) ? 0 : std::min(s->published, keys.size());
    s->published = keys.size();
    keys.erase(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(done));
    if (keys.empty()) return;
    const uint64_t first = done * shape_.block_rows;
    note(s, "publish %zu blocks from row %llu on", keys.size(), ull(first));
    SAME_STATUS(ROUTECAP_OK,
                routecap_request_publish(capturer_, s->handle, store_, first, keys.data(),
                                         keys.size(), blocks_->generation));
    const uint64_t stale = blocks_->counts.blocks_stale;
    SAME(ROUTECAP_OK, model_->publish(s->request, blocks_, first, keys, blocks_->generation));
    model_->land();
    stale_in_flight_ |= blocks_->counts.blocks_stale != stale;
    named_ += keys.size(), totals_.published += keys.size();
    published_.emplace_back(s->tokens.begin(), s->tokens.begin() + static_cast<ptrdiff_t>(rows));
    if (published_.size() > 12) published_.pop_front();
}

// What was published has landed, as it has in the model.
routecap_store_counts Engine::settled() {
    if (last_step_ > 0) wait_for_slots(last_step_);
    routecap_store_counts c{};
    c.struct_size = sizeof c;
    for (;; std::this_thread::yield()) {
        SAME_STATUS(ROUTECAP_OK, routecap_store_stats(store_, &c));
        if (c.blocks_published + c.blocks_repeated + c.blocks_empty + c.blocks_stale +
                c.blocks_refused >=
            named_)
            return c;
    }
}

// Some blocks of one of the prefixes.
std::vector<uint64_t> Engine::some_keys() {
    if (published_.empty()) return {};
    const std::vector<uint64_t> &tokens = published_[below(published_.size())];
    std::vector<uint64_t> keys = block_keys(tokens, tokens.size(), shape_.block_rows);
    std::erase_if(keys, [this](uint64_t) { return chance(700); });
    return keys;
}

// The weights change: what comes now is of others.
void Engine::advance() {
    settled();
    blocks_->generation = ++tag_;
    SAME_STATUS(ROUTECAP_OK, routecap_store_advance(store_, tag_));
    totals_.advanced++;
}

void Engine::retain() {
    settled();
    const std::vector<uint64_t> keys = some_keys();
    std::vector<int32_t> reasons(keys.size());
    SAME_STATUS(ROUTECAP_OK,
                routecap_store_retain(store_, keys.data(), keys.size(), reasons.data()));
    for (size_t i = 0; i < keys.size(); i++) SAME(blocks_->retain(keys[i]), reasons[i]);
    const std::vector<uint64_t> others = some_keys();
    SAME_STATUS(ROUTECAP_OK, routecap_store_release(store_, others.data(), others.size()));
    for (const uint64_t key : others) blocks_->release(key);
}

// A key that two have in flight would be there again.
void Engine::evict() {
    settled();
    const std::vector<uint64_t> keys = some_keys();
    for (const uint64_t key : keys) blocks_->evict(key);
    SAME_STATUS(ROUTECAP_OK, routecap_store_evict(store_, keys.data(), keys.size(), nullptr));
    totals_.evicted += keys.size();
}

// When everything has landed.
void Engine::compare_store() {
    const routecap_store_counts counts = settled();
    SAME(blocks_->blocks.size(), counts.blocks);
    SAME(blocks_->kept().retained, counts.blocks_retained);
    SAME(blocks_->counts.blocks_stale, counts.blocks_stale);
    SAME(0, counts.blocks_in_flight);
    SAME(0, counts.blocks_mismatched);
    SAME(0, counts.blocks_refused);
    for (const auto &[key, block] : blocks_->blocks) {
        int32_t reason = -1;
        SAME_STATUS(ROUTECAP_OK,
                    routecap_store_contains(store_, &key, 1, counts.generation, &reason, nullptr));
        SAME(blocks_->why(key, counts.generation), reason);
    }
    routecap_store_free(std::exchange(store_, nullptr));
}

// What the target model found of the drafts: the first of one branch are accepted.
void Engine::verify(const SequencePtr &s) {
    std::vector<uint32_t> kept;
    const size_t branch = chance(500) ? 0 : below(s->drafts.size());
    size_t from = branch;
    while (from > 0 && s->drafts[from].second > 1) from--;  // where its branch begins
    for (size_t i = from;
         i < s->drafts.size() && s->drafts[i].second == i - from + 1 && chance(700); i++)
        kept.push_back(static_cast<uint32_t>(i));
    {
        const std::lock_guard lock(s->mutex);
        for (uint32_t i : kept) s->tokens.push_back(s->drafts[i].first);
        s->tokens.push_back(random_());
    }
    note(s, "accept %zu of %zu drafts of step %llu, from %zu on", kept.size(), s->drafts.size(),
         ull(s->draft_step), from);
    const bool leading = from == 0 && chance(500);
    SAME_STATUS(ROUTECAP_OK, routecap_request_accept(capturer_, s->handle, s->draft_step,
                                                     leading ? nullptr : kept.data(), kept.size()));
    SAME(ROUTECAP_OK, model_->accept(s->request, s->draft_step, kept.data(), kept.size()));
    model_->land();
    s->computed += kept.size();
    s->drafts.clear();
    for (Touched &span : touched_)
        if (span.drafts == s.get()) span.drafts = nullptr, span.step = last_step_;
    totals_.accepted += kept.size();
}

void Engine::fork(const SequencePtr &s) {
    const SequencePtr child = make(0);
    child->tokens = s->tokens;
    child->computed = s->computed, child->published = s->published;
    child->prompt = s->prompt, child->last = s->computed + 1 + below(60);
    const uint64_t rows = std::min<uint64_t>(s->computed, s->request->length());
    if (!done("fork", ROUTECAP_OK,
              routecap_request_fork(capturer_, s->handle, rows, &child->handle)))
        return;
    SAME(ROUTECAP_OK, model_->fork(s->request, rows, child->request));
    model_->land();
    child->taken = s->taken;
    child->streams = false;
    if (child->tokens.size() > s->prompt) child->tokens.back() = random_();  // another sample
    note(s, "fork %llu rows to sequence %llu", ull(rows), ull(child->number));
    note(child, "is forked from sequence %llu with %llu rows", ull(s->number), ull(rows));
    start(child);
    totals_.forks++;
}

// Its cache is dropped: it will be computed again, from the start or from a block on.
void Engine::preempt(const SequencePtr &s) {
    totals_.preempted++;
    switch (store_ != nullptr ? 2 * below(2) : below(3)) {
        case 0: {  // the rows too
            note(s, "close %llx, to be opened again", ull(s->handle));
            stop(s);
            SAME_STATUS(ROUTECAP_OK, routecap_request_close(capturer_, s->handle));
            model_->close(s->request);
            model_->land();
            const routecap_open_options options{sizeof options, shape_.policy};
            if (!done("open", ROUTECAP_OK,
                      routecap_request_open(capturer_, &options, &s->handle, 1)))
                return;
            s->request = model_->open(shape_.policy);
            for (auto &[routing, expected] : s->parts) routecap_routing_free(routing);
            s->parts.clear();
            s->taken = s->computed = s->published = 0;
            start(s);
            break;
        }
        case 1:  // some of them
            s->computed = s->taken + below(s->computed - s->taken + 1);
            note(s, "truncate to %zu rows", s->computed);
            SAME_STATUS(ROUTECAP_OK, routecap_request_truncate(capturer_, s->handle, s->computed));
            model_->truncate(s->request, s->computed);
            model_->land();
            break;
        default:  // they are kept, and recorded again
            s->computed = s->taken + below(s->computed - s->taken + 1);
            s->drifts = shape_.pages == 0 && s->parts.empty() && fault(300);
            note(s, "is preempted, and goes on from row %zu%s", s->computed,
                 s->drifts ? ", with other ids" : "");
            break;
    }
}

// A part of the rows is delivered while the sequence runs.
void Engine::stream(const SequencePtr &s) {
    const uint64_t rows = std::min<uint64_t>(s->computed, s->request->length());
    if (rows <= s->taken) return;
    routecap_routing *part = nullptr;
    const int32_t status = routecap_request_extract(capturer_, s->handle, s->taken, rows - s->taken,
                                                    ROUTECAP_EXTRACT_TAKE, 0, &part);
    if (status == ROUTECAP_ERR_NOT_READY) return;
    model::RoutingPtr expected;
    model::Routing whole;
    note(s, "take rows %zu to %llu", s->taken, ull(rows));
    const int32_t same = model_->read(s->request, s->taken, rows - s->taken, false, whole);
    if (shape_.pages != 0 ? status < 0 && status != ROUTECAP_ERR_NO_MEMORY : status != same)
        check::status("take", same, status);
    if (status < 0) return;
    model_->extract(s->request, s->taken, rows - s->taken, ROUTECAP_EXTRACT_TAKE, 0, expected);
    s->parts.emplace_back(part, expected);
    s->taken = rows;
}

void Engine::abort(const SequencePtr &s) {
    note(s, "close %llx", ull(s->handle));
    stop(s);
    SAME_STATUS(ROUTECAP_OK, routecap_request_close(capturer_, s->handle));
    model_->close(s->request);
    model_->land();
    for (auto &[routing, expected] : s->parts) routecap_routing_free(routing);
    totals_.aborted++;
}

void Engine::finish(const SequencePtr &s) {
    const uint64_t rows = chance(200)  ? ROUTECAP_ROWS_ALL
                          : fault(100) ? below(s->computed + 3)
                                       : s->computed;
    if (store_ != nullptr) publish(s, s->computed);
    note(s, "finish with %lld rows", static_cast<long long>(rows));
    stop(s);
    Result result{nullptr, nullptr, s, {}};
    if (!done("finish", ROUTECAP_OK,
              routecap_request_finish(capturer_, s->handle, rows, &result.routing)))
        return;
    result.expected = model_->finish(s->request, rows);
    model_->land();
    if (s->parts.empty() && result.expected->rows > 0) {
        SAME_STATUS(ROUTECAP_OK, routecap_routing_retain(result.routing));
        prefixes_.push_back({result.routing, result.expected, s, {}});
        if (prefixes_.size() > 6) {
            routecap_routing_free(prefixes_.front().routing);
            prefixes_.pop_front();
        }
    }
    result.parts.swap(s->parts);
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
}

void Engine::finish_all() {
    for (const SequencePtr &s : std::vector<SequencePtr>(running_))
        chance(200) ? abort(s) : finish(s);
    for (const Result &prefix : prefixes_) routecap_routing_free(prefix.routing);
    prefixes_.clear();
}

// ---- Steps ---------------------------------------------------------------------------------

void Engine::step() {
    while (running_.size() < shape_.sequences && chance(700)) arrive();
    for (const SequencePtr &s : std::vector<SequencePtr>(running_)) {
        examined = s.get();
        if (!s->drafts.empty()) {
            if (s->verified_at <= last_step_) verify(s);
            continue;
        }
        if (chance(1)) {
            abort(s);
        } else if (s->computed >= s->last) {
            finish(s);
        } else if (chance(3)) {
            preempt(s);
        } else if (s->computed >= s->prompt && running_.size() < 2 * shape_.sequences &&
                   chance(3)) {
            fork(s);
        } else if (s->streams && chance(50)) {
            stream(s);
        } else if (store_ != nullptr && chance(30)) {
            publish(s, s->computed);
        }
    }
    if (store_ != nullptr) {
        if (chance(20)) evict();
        if (chance(20)) retain();
        if (chance(1)) advance();
    }
    Batch batch;
    schedule(batch);
    forward(batch);
}

void Engine::schedule(Batch &batch) {
    std::vector<SequencePtr> order = running_;
    std::shuffle(order.begin(), order.end(), random_);
    for (const SequencePtr &s : order)
        if (s->drafts.empty() && s->computed < s->tokens.size() &&
            batch.rows.size() < shape_.rows && !chance(50))
            schedule(s, batch);
}

// A span of a sequence, whose rows are the next of the sink.
void Engine::span(const SequencePtr &s, uint64_t position, const std::vector<uint64_t> &tokens,
                  uint32_t flags, Batch &batch) {
    routecap_span given{};
    given.request = s->handle;
    given.position = position;
    given.sink_row = static_cast<uint32_t>(batch.rows.size());
    given.rows = static_cast<uint32_t>(tokens.size());
    given.flags = flags;
    if (chance(150)) {
        given.flags |= ROUTECAP_SPAN_DEVICE_POSITIONS;
        given.position_end = position + tokens.size() + below(4);
        batch.device_positions = true;
    }
    for (size_t i = 0; i < tokens.size(); i++)
        batch.rows.push_back({tokens[i], s->drifts, static_cast<int64_t>(position + i)});
    if ((given.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0 && fault(30))
        // Not where it may be.
        batch.rows.back().position = static_cast<int64_t>(given.position_end);
    note(s, "rows %llu+%u from sink row %u, flags %u, up to %llu", ull(position), given.rows,
         given.sink_row, given.flags, ull(given.position_end));
    batch.spans.push_back(given);
    batch.sequences.push_back(s);
}

void Engine::schedule(const SequencePtr &s, Batch &batch) {
    const size_t room = shape_.rows - batch.rows.size(), waiting = s->tokens.size() - s->computed;
    const size_t rows = std::min({room, waiting, 1 + static_cast<size_t>(below(64))});
    const auto from = s->tokens.begin() + static_cast<ptrdiff_t>(s->computed);
    span(s, s->computed, {from, from + static_cast<ptrdiff_t>(rows)}, 0, batch);
    s->computed += rows;
    if (s->computed < s->tokens.size()) return;
    s->drifts = false;
    if (!s->guesses || room - rows < 8) {
        const std::lock_guard lock(s->mutex);
        s->tokens.push_back(random_());
        return;
    }
    // It guesses: a chain, or a tree of several branches, each a span of its own.
    const size_t branches = chance(400) ? 2 : 1;
    for (size_t b = 0; b < branches; b++) {
        std::vector<uint64_t> tokens(1 + below(4));
        for (size_t i = 0; i < tokens.size(); i++) {
            tokens[i] = random_();
            s->drafts.emplace_back(tokens[i], i + 1);
        }
        span(s, s->computed, tokens, ROUTECAP_SPAN_SPECULATIVE, batch);
    }
    s->verified_at = last_step_ + 1 + below(4);  // the step now being made, or later ones
    batch.guessing.push_back(s);
}

// A cell's ids in the memory of a routing.
std::vector<int64_t> Engine::in_view(uint64_t token, uint32_t layer, bool drift) const {
    std::vector<int64_t> ids = route(shape_, token, layer, drift);
    ids.resize(shape_.k, ROUTECAP_NO_EXPERT);
    std::replace(ids.begin(), ids.end(), int64_t{ROUTECAP_NO_EXPERT},
                 int64_t{model_shape_->in_memory(model::kUnused)});
    return ids;
}

// The bits of the weights that a router gives its experts; once in a while one is no number.
std::vector<uint32_t> Engine::weigh(uint64_t token, uint32_t layer, bool drift) {
    const bool f32 = shape_.weights == ROUTECAP_DTYPE_F32,
               f16 = shape_.weights == ROUTECAP_DTYPE_F16;
    const uint32_t one = f32   ? 0x3f800000
                         : f16 ? 0x3c00
                               : 0x3f80,
                   digits = f32   ? 0x7fffff
                            : f16 ? 0x3ff
                                  : 0x7f;
    std::vector<uint32_t> bits;
    for (uint32_t c = 0; c < shape_.most(layer); c++)
        bits.push_back(one | (static_cast<uint32_t>(mix(token + layer * 31 + c + drift)) & digits));
    if (fault(2)) bits[below(bits.size())] = f32 ? 0x7fc00001 : f16 ? 0x7e01 : 0x7fc1;
    return bits;
}

// What the routers of a pass compute, on the device; and what the snapshot should hold of it.
std::vector<model::RowPtr> Engine::write_ids(const Batch &batch, uint32_t rows, uint32_t silent) {
    const uint32_t k = shape_.k;
    const int32_t dtype = shape_.tap == 3 ? ROUTECAP_DTYPE_I32 : shape_.dtype;
    const size_t size = model::element_bytes(dtype), live = batch.rows.size();
    const uint32_t stride = shape_.tap == 3 ? shape_.rows : rows;
    const size_t weight = shape_.weights != 0 ? model::element_bytes(shape_.weights) : 0;
    written_.resize(size_t{shape_.layers} * stride * k * size);
    written_weights_.resize(size_t{shape_.layers} * stride * k * weight);
    std::vector<model::RowPtr> taken;
    for (size_t r = 0; r < live; r++) {
        auto row = model::empty_row(*model_shape_, ROUTECAP_MISSING_UNWRITTEN);
        row->tag = tag_;
        // A layer with an id that is none, or one twice.
        const uint32_t odd = fault(5) ? static_cast<uint32_t>(below(shape_.layers)) : UINT32_MAX;
        for (uint32_t l = 0; l < shape_.layers; l++) {
            std::vector<int64_t> ids = route(shape_, batch.rows[r].token, l, batch.rows[r].drift);
            // For `experts` may be what says that there is none.
            const int64_t wrong = shape_.experts + 1;
            // Twice the same among those that are chosen: to copy NO_EXPERT would be a choice of fewer.
            const auto used = ids.size() - static_cast<size_t>(std::count(ids.begin(), ids.end(),
                                                                          ROUTECAP_NO_EXPERT));
            if (l == odd && used > 1 && chance(500))
                ids[below(used)] = ids[below(used)];
            else if (l == odd)
                ids[below(ids.size())] = wrong;
            if (l != silent) {
                row->missing[l] = model::judge(ids, model_shape_->layers[l]);
                for (uint32_t c = 0; c < k; c++)
                    row->ids[l * k + c] = !row->valid(l)
                                              ? static_cast<uint16_t>(c == 0 ? row->missing[l] : 0)
                                          : c < ids.size() && ids[c] != ROUTECAP_NO_EXPERT
                                              ? static_cast<uint16_t>(ids[c])
                                              : model::kUnused;
            }
            const size_t columns = shape_.tap == 2 ? ids.size() : k;  // of the sink's own row
            if (weight != 0) {
                const std::vector<uint32_t> bits =
                    weigh(batch.rows[r].token, l, batch.rows[r].drift);
                if (l != silent && row->valid(l)) {
                    const auto used = ids.size() - static_cast<size_t>(std::count(
                                                       ids.begin(), ids.end(), ROUTECAP_NO_EXPERT));
                    if (auto kept = model_shape_->weigh(used, &bits)) row->weights[l] = *kept;
                }
                unsigned char *at = written_weights_.data() + size_t{l} * stride * k * weight +
                                    r * columns * weight;
                for (const uint32_t each : bits) std::memcpy(at, &each, weight), at += weight;
            }
            unsigned char *to =
                written_.data() + size_t{l} * stride * k * size + r * columns * size;
            for (uint32_t c = 0; c < ids.size(); c++, to += size) {
                const int64_t id = ids[c] == ROUTECAP_NO_EXPERT ? shape_.none() : ids[c];
                const int64_t value = dtype == ROUTECAP_DTYPE_ID16_BF16 ? id << 16 | 0x3f80 : id;
                switch (size) {
                    case 2: std::memcpy(to, &value, 2); break;
                    case 4: std::memcpy(to, &value, 4); break;
                    default: std::memcpy(to, &value, 8); break;
                }
            }
        }
        taken.push_back(std::move(row));
    }
    const auto count = static_cast<int32_t>(live);
    device_.write(live_, &count, sizeof count);
    if (shape_.tap < 2) {
        device_.write(ids_, written_.data(), written_.size());
        if (weight != 0) device_.write(weights_, written_weights_.data(), written_weights_.size());
    }
    if (batch.device_positions) {
        std::vector<int64_t> positions;
        for (const SinkRow &row : batch.rows) positions.push_back(row.position);
        device_.write(positions_, positions.data(), positions.size() * sizeof positions[0]);
    }
    return taken;
}

// The taps of all layers but a silent one; `rows` as the pass has them, padding included.
void Engine::record(uint32_t rows, uint32_t silent) {
    const int32_t dtype = shape_.tap == 3 ? ROUTECAP_DTYPE_I32 : shape_.dtype;
    const size_t layer_bytes =
        size_t{shape_.tap == 3 ? shape_.rows : rows} * shape_.k * model::element_bytes(dtype);
    routecap_source source{};
    source.struct_size = sizeof source;
    source.dtype = dtype;
    source.rows = rows;
    source.live_rows = live_;
    source.none = shape_.fewer ? static_cast<int32_t>(shape_.none()) : 0;
    source.weights_dtype = shape_.weights;
    const size_t weights_bytes = shape_.weights == 0 ? 0
                                                     : layer_bytes / model::element_bytes(dtype) *
                                                           model::element_bytes(shape_.weights);
    std::vector<routecap_layer_source> layers;
    for (uint32_t l = 0; l < shape_.layers; l++) {
        if (l == silent) continue;
        if (shape_.tap >= 2) {  // a router that writes the sink
            routecap_sink sink{};
            sink.struct_size = sizeof sink;
            SAME_STATUS(ROUTECAP_OK, routecap_sink_layer(capturer_, l, &sink));
            const size_t bytes =
                shape_.tap == 2 ? layer_bytes / shape_.k * shape_.most(l) : layer_bytes;
            device_.write(sink.ids, written_.data() + l * layer_bytes, bytes);
            if (shape_.weights != 0)
                device_.write(
                    sink.weights, written_weights_.data() + l * weights_bytes,
                    bytes / model::element_bytes(dtype) * model::element_bytes(shape_.weights));
            continue;
        }
        const void *weights = shape_.weights != 0 ? weights_ + l * weights_bytes : nullptr;
        layers.push_back({l, 0, ids_ + l * layer_bytes, nullptr, weights});
        source.ids = layers.back().ids, source.weights = weights;
        if (shape_.tap == 0)
            SAME_STATUS(ROUTECAP_OK,
                        routecap_layer_record(capturer_, l, &source, device_.stream()));
    }
    source.ids = nullptr, source.weights = nullptr;
    if (shape_.tap == 1)
        SAME_STATUS(ROUTECAP_OK,
                    routecap_layers_record(capturer_, &source, layers.data(), sizeof layers[0],
                                           layers.size(), device_.stream()));
}

void Engine::pass(uint32_t rows, uint32_t silent, bool begins, bool snapshots) {
    if (begins) SAME_STATUS(ROUTECAP_OK, routecap_step_begin(capturer_, rows, device_.stream()));
    record(rows, silent);
    if (snapshots) SAME_STATUS(ROUTECAP_OK, routecap_step_snapshot(capturer_, device_.stream()));
}

void Engine::wait_for_slots(uint64_t step) {
    if (step == 0 || step > last_step_) return;
    const int32_t status = routecap_step_finalize(capturer_, step, -1, nullptr);
    if (status != ROUTECAP_OK && status != ROUTECAP_LOST)
        check::status("finalize", ROUTECAP_OK, status);
    landed_ = std::max(landed_, step);
}

// After an issue: what the capturer may have in use until the next one.
void Engine::note_memory(const Batch &batch, const std::vector<int32_t> &status) {
    for (size_t i = 0; i < batch.spans.size(); i++) {
        const routecap_span &span = batch.spans[i];
        if (status[i] != ROUTECAP_OK) continue;
        const uint64_t end = (span.flags & ROUTECAP_SPAN_DEVICE_POSITIONS) != 0
                                 ? span.position_end
                                 : span.position + span.rows;
        const bool draft = (span.flags & ROUTECAP_SPAN_SPECULATIVE) != 0;
        touched_.push_back({last_step_, draft ? batch.sequences[i].get() : nullptr,
                            (end - 1) / memory_.page_rows - span.position / memory_.page_rows + 1});
    }
    uint64_t pages = 0;
    for (const Touched &span : touched_) pages += span.pages;
    routecap_stats s{};
    s.struct_size = sizeof s;
    SAME_STATUS(ROUTECAP_OK, routecap_capturer_stats(capturer_, &s));
    most_bytes_ = std::max(most_bytes_, s.bytes_budget + pages * memory_.page_bytes);
    if (s.bytes_in_use <= s.bytes_budget)
        std::erase_if(touched_, [this](const Touched &span) {
            return span.drafts == nullptr && span.step < landed_;
        });
}

void Engine::forward(Batch &batch) {
    const bool waits = !fault(20);  // else a step may be lost
    if (waits && last_step_ >= shape_.slots) wait_for_slots(last_step_ + 1 - shape_.slots);
    const bool graph = graphs_ && !chance(200);
    auto rows = static_cast<uint32_t>(std::max<size_t>(1, batch.rows.size()));
    uint32_t silent = UINT32_MAX;
    bool begins = true, snapshots = true, makes = false;
    if (graph) {
        for (uint32_t padded = (shape_.rows + 3) / 4;; padded *= 2)
            if (padded >= rows || padded >= shape_.rows) {
                rows = std::min(padded, shape_.rows);
                break;
            }
    } else {
        if (fault(20)) silent = static_cast<uint32_t>(below(shape_.layers));
        begins = !fault(5);
        snapshots = !fault(50);
        makes = !snapshots && chance(800);
    }
    std::vector<model::RowPtr> taken = write_ids(batch, rows, silent);
    if (!graph) {
        pass(rows, silent, begins, snapshots);
    } else {
        auto captured = captured_.find(rows);
        if (captured == captured_.end())
            captured =
                captured_
                    .emplace(rows, device_.capture([&] { pass(rows, silent, begins, snapshots); }))
                    .first;
        captured->second.replay(device_.stream());
    }
    if (!begins || (!snapshots && !makes)) taken.clear();

    if (fault(100)) tag_++;
    routecap_issue_options options{};
    options.struct_size = sizeof options;
    options.snapshot = makes ? ROUTECAP_SNAPSHOT_MAKE : ROUTECAP_SNAPSHOT_TAKEN;
    options.tag = tag_;
    if (batch.device_positions)
        options.positions = positions_, options.positions_dtype = ROUTECAP_DTYPE_I64;
    std::vector<int32_t> status(batch.spans.size() + 1, 77);
    routecap_step step = 0;
    const int32_t issued =
        routecap_step_issue(capturer_, batch.spans.data(), sizeof(routecap_span),
                            batch.spans.size(), &options, status.data(), &step, device_.stream());
    if (issued == ROUTECAP_LOST && begins && !rig::on_cuda() && !shape_.may_lose)
        check::fail("a step was lost on the host backend");
    std::vector<model::Span> spans;
    for (size_t i = 0; i < batch.spans.size(); i++) {
        if (status[i] != ROUTECAP_OK) examined = batch.sequences[i].get();
        if (status[i] != ROUTECAP_OK && (shape_.pages == 0 || status[i] != ROUTECAP_ERR_NO_MEMORY))
            check::fail("span %zu is %s", i, routecap_status_name(status[i]));
        spans.push_back({batch.sequences[i]->request, batch.spans[i], status[i]});
    }
    std::vector<int64_t> positions;
    for (const SinkRow &row : batch.rows) positions.push_back(row.position);
    uint64_t ticket = 0;
    const int32_t expected = model_->issue(spans, positions, tag_, {std::move(taken), 0, 0},
                                           issued == ROUTECAP_LOST, ticket);
    model_->land();
    check::status("issue", expected, issued);
    SAME(ticket, step);
    for (const SequencePtr &s : batch.guessing) s->draft_step = step;
    last_step_ = step;
    note_memory(batch, status);
    totals_.steps++;
    totals_.rows += batch.rows.size();
}

// ---- Comparing -----------------------------------------------------------------------------

bool Engine::compare_next() {
    Result result;
    {
        const std::lock_guard lock(mutex_);
        if (results_.empty()) return false;
        result = std::move(results_.front());
        results_.pop_front();
    }
    compare(std::move(result));
    return true;
}

void Engine::compare(Result result) {
    examined = result.sequence.get();
    // Under pressure rows of a prefix may be refused, and then others may come in their place.
    const check::Refused any = [&](uint64_t position, size_t layer,
                                   const std::vector<int64_t> &ids) {
        cells_refused_++;
        if (ids.empty()) return;
        if (ids != in_view(result.sequence->tokens[position], static_cast<uint32_t>(layer), false))
            check::fail("row %llu layer %zu is there and should be missing", ull(position), layer);
    };
    const check::Refused refused = shape_.pages != 0 && shape_.attaches ? any : nullptr;
    const auto all = [&](routecap_routing *routing, const model::Routing &expected,
                         bool thoroughly) {
        if (thoroughly && !refused) check::routing(routing, expected);
        const uint64_t compared = check::rows(routing, expected, refused);
        totals_.cells_compared += compared;
        return compared;
    };
    const int32_t status = routecap_routing_wait(result.routing, -1);
    if (!refused || status < 0) check::status("wait", result.expected->status(), status);
    all(result.routing, *result.expected, result.sequence->number % 4 == 0);
    totals_.cells += result.expected->rows * shape_.layers;
    totals_.routings++;

    if (!result.parts.empty()) {  // what was taken while it ran, and the rest
        std::vector<const routecap_routing *> routings{result.routing};
        std::vector<model::RoutingPtr> expected{result.expected};
        for (const auto &[routing, same] : result.parts) {
            all(routing, *same, false);
            routings.push_back(routing);
            expected.push_back(same);
        }
        model::RoutingPtr united;
        routecap_routing *merged = nullptr;
        const int32_t same = model::merge(expected, united);
        const int32_t merging =
            routecap_routing_merge(routings.data(), routings.size(), 0, &merged);
        if (!refused && (shape_.pages == 0 || merging != ROUTECAP_ERR_NO_MEMORY))
            check::status("merge", same, merging);
        if (merged != nullptr && united != nullptr) all(merged, *united, false);
        routecap_routing_free(merged);
        for (const auto &[routing, same_part] : result.parts) routecap_routing_free(routing);
    }
    if (result.sequence->number % 3 == 0) {  // to another process and back, and cut in two
        const std::vector<uint8_t> data = check::serialized(result.routing);
        routecap_routing *back = nullptr, *prompt = nullptr, *generated = nullptr;
        SAME_STATUS(status, routecap_routing_deserialize(data.data(), data.size(), 0, nullptr,
                                                         nullptr, &back));
        all(back, *result.expected, false);
        SAME_STATUS(ROUTECAP_OK, routecap_routing_split(back, result.sequence->prompt,
                                                        ROUTECAP_ROWS_ALL, &prompt, &generated));
        const uint64_t middle = std::min<uint64_t>(result.sequence->prompt, result.expected->rows);
        all(prompt, result.expected->part(0, middle), false);
        all(generated, result.expected->part(middle, result.expected->rows - middle), false);
        for (routecap_routing *routing : {back, prompt, generated}) routecap_routing_free(routing);
    }
    routecap_routing_free(result.routing);
    examined = nullptr;
}

// Reads what has landed of a sequence that runs: whatever is valid of a few rows, the newest or
// others, must be of the tokens that are there.
void Engine::compare_running(uint64_t random) {
    SequencePtr s;
    routecap_request handle = 0;
    {
        const std::lock_guard lock(mutex_);
        if (running_.empty()) return;
        s = running_[random % running_.size()];
        handle = s->handle;
    }
    examined = s.get();
    routecap_routing *routing = nullptr;
    const uint64_t first = random / 64 % 128;
    const int32_t status = routecap_request_extract(capturer_, handle, first, ROUTECAP_ROWS_LANDED,
                                                    ROUTECAP_EXTRACT_SHARE, 0, &routing);
    const bool short_of_memory = shape_.pages != 0 && status == ROUTECAP_ERR_NO_MEMORY;
    if (status < 0 && status != ROUTECAP_ERR_UNKNOWN_REQUEST &&
        status != ROUTECAP_ERR_OUT_OF_RANGE && !short_of_memory)
        check::status("a reader's extract", ROUTECAP_OK, status);
    if (routing == nullptr) return;
    routecap_view view{};
    view.struct_size = sizeof view;
    SAME_STATUS(ROUTECAP_OK, routecap_routing_view(routing, &view));
    constexpr uint64_t few = 64;
    const uint64_t newest = view.rows - std::min(view.rows, few), choice = random >> 32,
                   begin = view.first + (choice % 2 == 0 ? newest : choice / 2 % (newest + 1)),
                   end = std::min(begin + few, view.first + view.rows);
    std::vector<uint64_t> tokens;  // from `begin` on
    {
        const std::lock_guard lock(s->mutex);
        const auto known = static_cast<ptrdiff_t>(std::min<uint64_t>(end, s->tokens.size()));
        if (known > static_cast<ptrdiff_t>(begin))
            tokens.assign(s->tokens.begin() + static_cast<ptrdiff_t>(begin),
                          s->tokens.begin() + known);
    }
    uint64_t compared = 0;
    std::vector<int64_t> got(shape_.k);
    for (size_t i = 0; i < view.segment_count; i++) {
        const routecap_segment &segment = view.segments[i];
        if (segment.ids == nullptr || segment.first >= end) continue;
        for (uint64_t r = std::max(begin, segment.first) - segment.first;
             r < std::min(segment.rows, end - segment.first); r++)
            for (uint32_t l = 0; l < shape_.layers; l++) {
                if (!cell_is_valid(view, segment, r, l)) continue;
                const uint64_t position = segment.first + r;
                if (position >= begin + tokens.size())
                    check::fail("a reader found row %llu of %llu tokens", ull(position),
                                ull(begin + tokens.size()));
                for (uint32_t c = 0; c < shape_.k; c++)
                    got[c] = static_cast<uint16_t>(id_of_cell(view, segment, r, l, c));
                const auto computed = [&](bool drift) {
                    return got == in_view(tokens[position - begin], l, drift);
                };
                if (!computed(false) && !computed(true))
                    check::fail("a reader found other ids in row %llu layer %u", ull(position), l);
                compared++;
            }
    }
    totals_.live_cells_compared += compared;
    routecap_routing_free(routing);
    examined = nullptr;
}

// After the last result: the counts are the model's, none was refused that issue had accepted, and
// all memory came back.
void Engine::compare_counters() {
    // A request that ends now is sealed after all that was called before.
    routecap_request request = 0;
    routecap_routing *routing = nullptr;
    // The last has landed at once if there was no memory for its rows.
    for (routecap_step step = last_step_ - std::min<uint64_t>(last_step_, shape_.slots) + 1;
         step <= last_step_; step++)
        wait_for_slots(step);
    if (!done("open", ROUTECAP_OK, routecap_request_open(capturer_, nullptr, &request, 1)) ||
        !done("finish", ROUTECAP_OK, routecap_request_finish(capturer_, request, 0, &routing)))
        return;
    SAME_STATUS(ROUTECAP_OK, routecap_routing_wait(routing, -1));
    routecap_routing_free(routing);
    if (store_ != nullptr) compare_store();
    routecap_stats s{};
    s.struct_size = sizeof s;
    SAME_STATUS(ROUTECAP_OK, routecap_capturer_stats(capturer_, &s));
    const routecap_stats &m = model_->stats;
    SAME(m.steps_issued, s.steps_issued);
    SAME(m.steps_landed, s.steps_landed);
    SAME(m.steps_lost, s.steps_lost);
    SAME(m.rows_issued, s.rows_issued);
    SAME(m.rows_lost, s.rows_lost);
    SAME(m.rows_skipped, s.rows_skipped);
    SAME(m.requests_open, s.requests_open);
    SAME(0, s.rows_in_flight);
    SAME(0, s.rows_provisional);
    SAME(m.rows_refused, s.rows_refused);
    SAME(m.rows_unplaced, s.rows_unplaced);
    SAME(m.rows_rejected, s.rows_rejected);
    // The model files at once: what landed late is delivered or missing there.
    if (s.rows_delivered > m.rows_delivered || s.rows_missing > m.rows_missing)
        check::fail("more rows were filed than issued");
    SAME(m.rows_delivered + m.rows_missing + m.rows_late,
         s.rows_delivered + s.rows_missing + s.rows_late);
    if (shape_.pages == 0)  // else the model has rows that were refused
        check::load(capturer_, *model_shape_, model_->load, s.rows_delivered != m.rows_delivered);
    for (int tries = 0; s.bytes_in_use > 0 && tries < 1000; tries++) {
        // The worker lets go of the last a moment later.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        SAME_STATUS(ROUTECAP_OK, routecap_capturer_stats(capturer_, &s));
    }
    SAME(0, s.bytes_in_use);
    if (s.bytes_peak > std::max(s.bytes_budget, most_bytes_))
        check::fail("%llu bytes were in use of %llu, and at most %llu could be", ull(s.bytes_peak),
                    ull(s.bytes_budget), ull(most_bytes_));
    totals_.rows_issued += shape_.pages == 0 ? s.rows_issued : 0;
    totals_.rows_delivered += shape_.pages == 0 ? s.rows_delivered : 0;
    totals_.rows_lost += s.rows_lost;
    totals_.rows_refused += s.rows_refused;
    totals_.steps_lost += s.steps_lost;
    totals_.bytes_peak = std::max(totals_.bytes_peak, s.bytes_peak);
    totals_.cells_refused += cells_refused_;
}

}  // namespace soak
