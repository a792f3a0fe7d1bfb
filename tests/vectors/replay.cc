// Replays the conformance vectors through the C API: every call of every vector, with everything
// that README.md says is compared. Usage:
//
//     vectors [options of GoogleTest]   those in the folder that ROUTECAP_VECTORS names, or else in
//                                       the one that it was built for
//     vectors --all-wrong               succeeds if every vector fails: those of
//                                       files.py --mutate
//     vectors --answers                 writes what the library answers into the files, wherever a
//                                       vector expects something else
#include "values.h"

#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>

#include "../support/declared.h"
#include "../support/views.h"

namespace vectors {
namespace {

// ---- One vector ----------------------------------------------------------------------------

class Replay {
public:
    explicit Replay(const json &vector) : vector_(vector) {}
    ~Replay();
    void run();

private:
    void call(const json &said);

    // The status that the call returned, against the one expected, and its text. Returns whether it
    // delivers its outputs.
    bool returned(int32_t status);
    // The argument, or NULL if the vector says so.
    template <class T>
    T *unless_null(const char *name, T *argument) const {
        if (in_->has("null"))
            for (const json &null : (*in_)["null"])
                if (null == name) return nullptr;
        return argument;
    }
    template <class T>
    T *of_name(const std::map<std::string, T *> &named, const char *key) const {
        return in_->has(key) ? named.at((*in_)[key].get<std::string>()) : nullptr;
    }
    routecap_capturer *capturer() const { return of_name(capturers_, "capturer"); }
    routecap_routing *routing(const char *key = "routing") const { return of_name(routings_, key); }
    routecap_sequence *sequence() const { return of_name(sequences_, "sequence"); }
    routecap_store *store() const { return of_name(stores_, "store"); }
    routecap_request request(const json &name) const {
        return name.is_number() ? name.get<routecap_request>()
                                : requests_.at(name.get<std::string>());
    }
    routecap_stream stream() const {
        return reinterpret_cast<routecap_stream>(in_->get<uintptr_t>("stream"));
    }

    // Outputs that are handles.
    void bind(const json &name, routecap_routing *routing);
    void bind(const json &name, routecap_request request);
    void bind(const json &name, routecap_sequence *sequence);
    template <class Handle>
    void made(bool delivered, const char *key, Handle *handle) {
        if (delivered)
            bind((*out_)[key], handle);
        else
            expect_null(handle);
    }
    static void expect_null(const void *handle) { EXPECT_EQ(nullptr, handle); }
    void expect_statuses(const std::vector<int32_t> &statuses);
    template <class T>
    void expect_number(const char *key, T value) {
        if (out_->has(key)) expect_value((*out_)[key], value, key);
    }
    // A buffer that the call may write.
    void expect_elements(bool delivered, const char *key, const Elements &elements,
                         double tolerance = 0);

    // Memory that lives as long as the call.
    void *keep(Elements &&elements, size_t first = 0) {
        return kept_.emplace_back(std::move(elements)).data(first);
    }
    const int32_t *kept_i32(const Said &said, const char *key) {
        if (!said.has(key)) return nullptr;
        const json &value = said[key];
        return static_cast<int32_t *>(
            keep(Elements(value.is_array() ? value : json::array({value}), ROUTECAP_DTYPE_I32)));
    }

    template <class Placement>
    void fill_placement(Placement &p, const Said &said);
    void fill_config(routecap_config &config, const Said &said);
    void fill_source(routecap_source &source, const Said &said);
    routecap_accept_item accept_item(const Said &said);
    size_t array_size(const char *key, size_t usual) const { return in_->get<size_t>(key, usual); }

    void expect_reasons(const routecap_view &view, const std::vector<int32_t> &said);
    void expect_view(const routecap_view &view, const json &expected);
    void expect_coverage(bool delivered, routecap_coverage &coverage,
                         const Array<routecap_missing> &missing, size_t capacity);
    template <class Copy>
    void copying(Copy &&copy);
    template <class Make>
    void lending(Make &&make);
    const uint8_t *kept_bytes(const json &said, size_t &size);
    const uint8_t *kept_bytes(const char *key, size_t &size) {
        return kept_bytes((*in_)[key], size);
    }
    // Keys of the store that the call names.
    struct Keys {
        const uint8_t *bytes;
        size_t count;
    };
    Keys keys(const json &said) {
        size_t size = 0;
        const uint8_t *data = kept_bytes(said, size);
        return {data, size / key_bytes_.at((*in_)["store"].get<std::string>())};
    }
    template <class Serialize>
    void serializing(Serialize &&serialize);

    void library(const std::string &call);
    void configuration(const std::string &call);
    void sinks(const std::string &call);
    void taps(const std::string &call);
    void steps(const std::string &call);
    void requests(const std::string &call);
    void reading(const std::string &call);
    void routings(const std::string &call);
    void serialized(const std::string &call);
    void sequences(const std::string &call);
    void stores(const std::string &call);
    void prefixes(const std::string &call);

    const json &vector_;
    std::map<std::string, routecap_capturer *> capturers_;
    std::map<std::string, routecap_request> requests_;
    std::map<std::string, routecap_routing *> routings_;
    std::map<std::string, routecap_sequence *> sequences_;
    std::map<std::string, routecap_store *> stores_;
    std::map<std::string, size_t> key_bytes_;  // of stores
    std::map<std::string, Elements> memory_;   // of bound sinks
    // Positions of steps whose rows arrive later, and of which step each are.
    std::deque<Elements> positions_;
    std::map<std::pair<std::string, routecap_step>, Elements *> positions_of_;
    struct Loan {
        std::vector<Elements> arrays;
        int released = 0;
        bool taken = false;
    };
    std::deque<Loan> loans_;

    const json *call_ = nullptr;  // with `in` and `out`
    const Said *in_ = nullptr, *out_ = nullptr;
    std::deque<Elements> kept_;
    bool known_ = false;
};

Replay::~Replay() {
    for (const auto &[name, routing] : routings_) routecap_routing_free(routing);
    for (const auto &[name, sequence] : sequences_) routecap_sequence_free(sequence);
    for (const auto &[name, capturer] : capturers_) routecap_capturer_destroy(capturer);
    for (const auto &[name, store] : stores_) routecap_store_free(store);
    for (const Loan &loan : loans_)
        EXPECT_EQ(loan.taken, loan.released) << "times that lent memory was released";
}

void Replay::run() {
    size_t number = 0;
    for (const json &said : vector_["calls"]) {
        SCOPED_TRACE("call " + std::to_string(number++) + ": " + said.dump().substr(0, 400));
        call(said);
        if (testing::Test::HasFailure()) return;  // what follows would fail for the same reason
    }
}

void Replay::call(const json &said) {
    const Said whole(said);
    whole.has("raw");
    const json nothing = json::object();
    const Said in(whole["in"]), out(whole.has("out") ? whole["out"] : nothing);
    const std::string name = whole["call"].get<std::string>();
    whole.has("status");
    call_ = &said, in_ = &in, out_ = &out, known_ = false;
    kept_.clear();
    library(name), configuration(name), sinks(name), taps(name), steps(name), requests(name),
        reading(name), routings(name), serialized(name), sequences(name), stores(name),
        prefixes(name);
    EXPECT_TRUE(known_) << "no such call";
}

bool Replay::returned(int32_t status) {
    known_ = true;
    expect(call_->at("status"), routecap_status_name(status), routecap_last_error());
    if (status < 0 || status == ROUTECAP_INCOMPLETE || status == ROUTECAP_NOT_CAPTURED ||
        status == ROUTECAP_PARTIAL || status == ROUTECAP_LOST) {
        const std::string text = routecap_last_error();
        EXPECT_FALSE(text.empty());
        EXPECT_EQ(std::string::npos, text.find('\n'));
    }
    return status >= 0;
}

void Replay::bind(const json &name, routecap_routing *routing) {
    EXPECT_NE(nullptr, routing);
    EXPECT_TRUE(routings_.emplace(name.get<std::string>(), routing).second);
}

void Replay::bind(const json &name, routecap_sequence *sequence) {
    EXPECT_NE(nullptr, sequence);
    EXPECT_TRUE(sequences_.emplace(name.get<std::string>(), sequence).second);
}

void Replay::bind(const json &name, routecap_request request) {
    if (name.is_number()) {
        EXPECT_EQ(name.get<routecap_request>(), request);
        return;
    }
    EXPECT_NE(routecap_request{0}, request);
    for (const auto &[other, handle] : requests_) EXPECT_NE(handle, request) << other;
    EXPECT_TRUE(requests_.emplace(name.get<std::string>(), request).second);
}

void Replay::expect_statuses(const std::vector<int32_t> &statuses) {
    if (!out_->has("status")) return;
    json names = json::array();
    for (int32_t status : statuses) names.push_back(routecap_status_name(status));
    expect((*out_)["status"], names, "status");
}

void Replay::expect_elements(bool delivered, const char *key, const Elements &elements,
                             double tolerance) {
    if (!delivered) {
        EXPECT_TRUE(elements.untouched()) << key;
        return;
    }
    if (!out_->has(key)) return;
    const json &expected = (*out_)[key];
    ASSERT_EQ(expected.size(), elements.count()) << key;
    for (size_t i = 0; i < expected.size(); i++) {
        const json answered = elements.at(i);
        const std::string what = std::string(key) + " " + std::to_string(i);
        if (tolerance == 0)
            expect_value(expected[i], answered.get<int64_t>(), what);
        else if (std::abs(expected[i].get<double>() - answered.get<double>()) > tolerance)
            expect(expected[i], answered, what);
    }
}

// ---- Structs with pointers

void Replay::fill_config(routecap_config &config, const Said &said) {
    fill(config, said);
    config.layer_map = kept_i32(said, "layer_map");
    config.layer_experts = reinterpret_cast<const uint32_t *>(kept_i32(said, "layer_experts"));
    config.layer_provenance = kept_i32(said, "layer_provenance");
}

template <class Placement>
void Replay::fill_placement(Placement &p, const Said &said) {
    fill(p, said);
    p.live_rows = kept_i32(said, "live_rows");
    p.row_base = kept_i32(said, "row_base");
    p.row_index = kept_i32(said, "row_index");
}

void Replay::fill_source(routecap_source &source, const Said &said) {
    fill_placement(source, said);
    const auto start = said.get<size_t>("ids_start");
    if (said.has("ids")) source.ids = keep(Elements(said["ids"], source.dtype), start);
    source.table = kept_i32(said, "table");
    if (source.table != nullptr) source.table_size = static_cast<uint32_t>(said["table"].size());
}

routecap_accept_item Replay::accept_item(const Said &said) {
    routecap_accept_item item{};
    fill(item, said);
    item.request = request(said["request"]);
    item.rows = reinterpret_cast<const uint32_t *>(kept_i32(said, "rows"));
    if (said.has("rows")) item.count = said["rows"].size();
    return item;
}

// ---- The calls, by topic

void Replay::library(const std::string &call) {
    if (call == "version") {
        known_ = true;
        expect_number("version", routecap_version());
    } else if (call == "get_api") {
        known_ = true;
        const routecap_api *api =
            routecap_get_api(in_->get<uint32_t>("major"), in_->get<uint32_t>("minor"));
        expect_number("available", api != nullptr ? 1 : 0);
    } else if (call == "status_name") {
        known_ = true;
        expect((*out_)["name"], routecap_status_name(in_->get<int32_t>("status")), "name");
    } else if (call == "backend_info") {
        Struct<routecap_backend> info((*in_)["info"]);
        if (!returned(routecap_backend_info(in_->get<int32_t>("backend"),
                                            unless_null("info", info.get()))))
            return;
        expect_fields(*info, (*out_)["info"]);
        EXPECT_TRUE(info->struct_size < sizeof(routecap_backend) || std::strlen(info->detail) > 0);
    }
}

void Replay::configuration(const std::string &call) {
    const auto config = [&](Struct<routecap_config> &config) {
        fill_config(*config, Said((*in_)["config"]));
        return unless_null("config", config.get());
    };
    if (call == "config_init") {
        Struct<routecap_config> made;
        if (!returned(
                routecap_config_init(unless_null("config", made.get()),
                                     in_->get<size_t>("struct_size", sizeof(routecap_config)))))
            return;
        expect_fields(*made, (*out_)["config"], [&](const std::string &key, const json &value) {
            EXPECT_TRUE(value.is_null() &&
                        (key == "layer_map" || key == "layer_experts" || key == "layer_provenance"))
                << key;
            EXPECT_TRUE(made->layer_map == nullptr && made->layer_experts == nullptr &&
                        made->layer_provenance == nullptr);
        });
    } else if (call == "config_memory") {
        Struct<routecap_config> given((*in_)["config"]);
        Struct<routecap_memory> memory((*in_)["memory"]);
        if (returned(routecap_config_memory(config(given), unless_null("memory", memory.get()))))
            expect_fields(*memory, (*out_)["memory"]);
    } else if (call == "capturer_create") {
        Struct<routecap_config> given((*in_)["config"]);
        const routecap_config *argument = config(given);
        if (in_->has("budget_pages")) {
            Struct<routecap_memory> memory;
            EXPECT_EQ(ROUTECAP_OK, routecap_config_memory(argument, memory.get()));
            given->budget_bytes = in_->get<uint64_t>("budget_pages") * memory->page_bytes;
        }
        auto *made = reinterpret_cast<routecap_capturer *>(&given);
        if (returned(routecap_capturer_create(argument, unless_null("capturer", &made))))
            capturers_[(*out_)["capturer"].get<std::string>()] = made;
        else if (unless_null("capturer", &made) != nullptr)
            expect_null(made);
    } else if (call == "capturer_destroy") {
        known_ = true;
        routecap_capturer_destroy(capturer());
        if (in_->has("capturer")) capturers_.erase((*in_)["capturer"].get<std::string>());
    } else if (call == "capturer_stats") {
        Struct<routecap_stats> stats((*in_)["stats"]);
        if (!returned(routecap_capturer_stats(capturer(), unless_null("stats", stats.get()))))
            return;
        expect_fields(*stats, (*out_)["stats"]);
        stats.expect_filled();
    } else if (call == "capturer_layer_stats") {
        const auto count = in_->get<size_t>("count"),
                   size = array_size("stat_size", sizeof(routecap_layer_stats));
        Array<routecap_layer_stats> stats(std::vector<routecap_layer_stats>(count), size);
        if (!returned(routecap_capturer_layer_stats(capturer(), unless_null("stats", stats.data()),
                                                    size, count)) ||
            !out_->has("stats"))
            return;
        expect_each(stats, (*out_)["stats"], count);
    } else if (call == "capturer_load") {
        Struct<routecap_load> load((*in_)["load"]);
        // What the caller gave, or as many as there are.
        const size_t count = in_->has("count")     ? in_->get<size_t>("count")
                             : out_->has("counts") ? (*out_)["counts"].size()
                                                   : 0;
        std::vector<uint64_t> counts(count, 77);
        const int32_t status = routecap_capturer_load(capturer(), unless_null("load", load.get()),
                                                      unless_null("counts", counts.data()), count);
        if (!returned(status)) {
            EXPECT_EQ(counts, std::vector<uint64_t>(count, 77));
            return;
        }
        expect_fields(*load, (*out_)["load"]);
        if (out_->has("counts")) expect((*out_)["counts"], written(counts), "counts");
    } else if (call == "capturer_progress") {
        returned(routecap_capturer_progress(capturer()));
    }
}

void Replay::sinks(const std::string &call) {
    if (call == "sink_bind") {
        Struct<routecap_sink> sink((*in_)["sink"]);
        const Said said((*in_)["sink"]);
        fill(*sink, said);
        if (said.has("ids")) {
            const Said memory(said["ids"]);
            const std::string name = memory["memory"].get<std::string>();
            const auto elements = memory.get<size_t>("elements"),
                       start = memory.get<size_t>("start");
            sink->ids = memory_.try_emplace(name, elements, sink->dtype).first->second.data(start);
        }
        returned(routecap_sink_bind(capturer(), in_->get<uint32_t>("first_layer"),
                                    in_->get<uint32_t>("layers"), unless_null("sink", sink.get())));
    } else if (call == "sink_layer") {
        Struct<routecap_sink> sink((*in_)["sink"]);
        if (!returned(routecap_sink_layer(capturer(), in_->get<uint32_t>("layer"),
                                          unless_null("sink", sink.get()))))
            return;
        expect_fields(*sink, (*out_)["sink"], [&](const std::string &key, const json &ids) {
            EXPECT_EQ("ids", key);
            const void *bound = ids.is_object()
                                    ? memory_.at(ids["memory"]).data(ids["start"].get<size_t>())
                                    : nullptr;
            EXPECT_TRUE(bound != nullptr ? sink->ids == bound
                                         : ids.is_boolean() == (sink->ids != nullptr));
        });
    } else if (call == "sink_write") {
        known_ = true;
        Struct<routecap_sink> sink;
        ASSERT_EQ(ROUTECAP_OK,
                  routecap_sink_layer(capturer(), in_->get<uint32_t>("layer"), sink.get()));
        Elements ids((*in_)["ids"], sink->dtype);
        const size_t size = element_size(sink->dtype), columns = sink->k,
                     stride = static_cast<size_t>(sink->row_stride);
        auto *to =
            static_cast<uint8_t *>(sink->ids) + in_->get<size_t>("first_row") * stride * size;
        for (size_t row = 0; row < ids.count() / columns; row++, to += stride * size)
            std::memcpy(to, ids.data(row * columns), columns * size);
    }
}

void Replay::taps(const std::string &call) {
    const auto layer = in_->get<uint32_t>("layer");
    if (call == "layer_record") {
        Struct<routecap_source> source((*in_)["source"]);
        fill_source(*source, Said((*in_)["source"]));
        returned(routecap_layer_record(capturer(), layer, unless_null("source", source.get()),
                                       stream()));
    } else if (call == "layers_record") {
        Struct<routecap_source> source((*in_)["source"]);
        fill_source(*source, Said((*in_)["source"]));
        std::vector<routecap_layer_source> layers;
        for (const json &item : (*in_)["layers"]) {
            const Said said(item);
            routecap_layer_source &one = layers.emplace_back();
            fill(one, said);
            one.ids = keep(Elements(said["ids"], source->dtype));
            one.table = kept_i32(said, "table");
            if (one.table != nullptr)
                source->table_size = static_cast<uint32_t>(said["table"].size());
        }
        Array<routecap_layer_source> array(layers,
                                           array_size("layer_size", sizeof(routecap_layer_source)));
        returned(routecap_layers_record(capturer(), unless_null("source", source.get()),
                                        unless_null("layers", array.data()), array.size(),
                                        layers.size(), stream()));
    } else if (call == "router_init") {
        Struct<routecap_router> router;
        const auto size = in_->get<size_t>("struct_size", sizeof(routecap_router));
        const int32_t status = routecap_router_init(unless_null("router", router.get()), size,
                                                    in_->get<int32_t>("method"));
        if (returned(status)) expect_fields(*router, (*out_)["router"]);
    } else if (call == "layer_route") {
        Struct<routecap_router> router((*in_)["router"]);
        Struct<routecap_logits> logits((*in_)["logits"]);
        const Said of_router((*in_)["router"]), of_logits((*in_)["logits"]);
        if (of_router.has("method")) {
            EXPECT_EQ(ROUTECAP_OK, routecap_router_init(router.get(), sizeof(routecap_router),
                                                        of_router.get<int32_t>("method")));
        }
        fill(*router, of_router);
        if (of_router.has("bias"))
            router->bias = keep(Elements(of_router["bias"], router->bias_dtype));
        router->hash_table = kept_i32(of_router, "hash_table");
        fill_placement(*logits, of_logits);
        if (of_logits.has("logits"))
            logits->logits = keep(Elements(of_logits["logits"], logits->dtype),
                                  of_logits.get<size_t>("logits_start"));
        if (of_logits.has("tokens"))
            logits->tokens = keep(Elements(of_logits["tokens"], logits->tokens_dtype));
        const size_t wanted =
            of_logits.has("weights") ? (out_->has("weights") ? (*out_)["weights"].size() : 0) : 0;
        Elements weights(wanted, ROUTECAP_DTYPE_F32);
        if (of_logits.has("weights")) logits->weights = weights.data<float>();
        const int32_t status =
            routecap_layer_route(capturer(), layer, unless_null("router", router.get()),
                                 unless_null("logits", logits.get()), stream());
        expect_elements(returned(status), "weights", weights, out_->get<double>("tolerance"));
    } else if (call == "capturer_probe") {
        const auto count = in_->get<size_t>("count"),
                   size = array_size("layer_size", sizeof(routecap_layer_probe));
        Array<routecap_layer_probe> layers(std::vector<routecap_layer_probe>(count), size);
        const auto rows = in_->get<uint32_t>("rows");
        const int32_t status = routecap_capturer_probe(
            capturer(), rows, unless_null("layers", layers.data()), size, count, stream());
        if (returned(status) && out_->has("layers")) expect_each(layers, (*out_)["layers"], count);
    }
}

void Replay::steps(const std::string &call) {
    const auto step = in_->get<routecap_step>("step");
    if (call == "step_begin") {
        returned(routecap_step_begin(capturer(), in_->get<uint32_t>("rows"), stream()));
    } else if (call == "step_snapshot") {
        returned(routecap_step_snapshot(capturer(), stream()));
    } else if (call == "step_discard") {
        returned(routecap_step_discard(capturer(), stream()));
    } else if (call == "step_issue") {
        std::vector<routecap_span> spans;
        for (const json &item : (*in_)["spans"]) {
            const Said said(item);
            fill(spans.emplace_back(), said);
            spans.back().request = request(said["request"]);
        }
        Array<routecap_span> array(spans, array_size("span_size", sizeof(routecap_span)));
        array.spoil(in_->get<uint8_t>("span_tail"), spans.size());
        Struct<routecap_issue_options> options((*in_)["options"]);
        if (in_->has("options")) {
            const Said said((*in_)["options"]);
            fill(*options, said);
            if (said.has("positions")) {
                auto &kept = options->snapshot == ROUTECAP_SNAPSHOT_LATER ? positions_ : kept_;
                kept.emplace_back(said["positions"], options->positions_dtype);
                options->positions = kept.back().data();
            }
        }
        std::vector<int32_t> statuses(spans.size(), kUntouched);
        routecap_step ticket = kUntouched;
        const bool delivered = returned(routecap_step_issue(
            capturer(), unless_null("spans", array.data()), array.size(), spans.size(),
            in_->has("options") ? options.get() : nullptr, statuses.data(), &ticket, stream()));
        if (delivered) {
            expect_statuses(statuses);
            expect_number("step", ticket);
            if (options->snapshot == ROUTECAP_SNAPSHOT_LATER && options->positions != nullptr)
                positions_of_[{(*in_)["capturer"], ticket}] = &positions_.back();
        } else {
            EXPECT_EQ(std::vector<int32_t>(spans.size(), kUntouched), statuses);
            EXPECT_EQ(0u, ticket);
        }
    } else if (call == "step_arrive") {
        Struct<routecap_sink> rows((*in_)["rows"]);
        if (in_->has("rows")) {
            const Said said((*in_)["rows"]);
            fill(*rows, said);
            if (said.has("ids"))
                rows->ids = keep(Elements(said["ids"], rows->dtype), said.get<size_t>("ids_start"));
        }
        if (in_->has("positions")) {
            Elements &positions = *positions_of_.at({(*in_)["capturer"], step});
            for (size_t i = 0; i < (*in_)["positions"].size(); i++)
                positions.set(i, (*in_)["positions"][i]);
        }
        returned(routecap_step_arrive(capturer(), step, in_->has("rows") ? rows.get() : nullptr));
    } else if (call == "step_poll") {
        returned(routecap_step_poll(capturer(), step));
    } else if (call == "step_finalize") {
        uint64_t conflicting = kUntouched;
        returned(routecap_step_finalize(capturer(), step, in_->get<int64_t>("timeout_ns"),
                                        out_->has("conflicting") ? &conflicting : nullptr));
        expect_number("conflicting", conflicting);
    }
}

void Replay::requests(const std::string &call) {
    const routecap_request handle = in_->has("request") ? request((*in_)["request"]) : 0;
    const auto rows = [&] { return in_->get<uint64_t>("rows"); };
    if (call == "request_open") {
        Struct<routecap_open_options> options((*in_)["options"]);
        if (in_->has("options")) fill(*options, Said((*in_)["options"]));
        const auto count = in_->get<size_t>("count");
        std::vector<routecap_request> handles(count, kUntouched);
        const bool delivered = returned(
            routecap_request_open(capturer(), in_->has("options") ? options.get() : nullptr,
                                  unless_null("requests", handles.data()), count));
        EXPECT_TRUE(delivered || unless_null("requests", this) == nullptr ||
                    handles == std::vector<routecap_request>(count, 0));
        EXPECT_TRUE(!delivered || (*out_)["requests"].size() == count);
        for (size_t i = 0; delivered && i < count; i++) bind((*out_)["requests"][i], handles[i]);
    } else if (call == "request_accept") {
        const routecap_accept_item item = accept_item(*in_);
        in_->has("capturer");
        returned(
            routecap_request_accept(capturer(), item.request, item.step, item.rows, item.count));
    } else if (call == "request_accept_batch") {
        std::vector<routecap_accept_item> items;
        for (const json &item : (*in_)["items"]) items.push_back(accept_item(Said(item)));
        Array<routecap_accept_item> array(items,
                                          array_size("item_size", sizeof(routecap_accept_item)));
        const bool delivered = returned(routecap_request_accept_batch(
            capturer(), unless_null("items", array.data()), array.size(), items.size()));
        std::vector<int32_t> statuses;
        for (size_t i = 0; i < items.size(); i++) statuses.push_back(array.at(i).status);
        if (delivered) expect_statuses(statuses);
    } else if (call == "request_truncate") {
        returned(routecap_request_truncate(capturer(), handle, rows()));
    } else if (call == "request_fork") {
        routecap_request child = kUntouched;
        if (returned(
                routecap_request_fork(capturer(), handle, rows(), unless_null("child", &child))))
            bind((*out_)["child"], child);
        else
            EXPECT_EQ(unless_null("child", &child) != nullptr ? 0u : kUntouched, child);
    } else if (call == "request_attach") {
        returned(routecap_request_attach(capturer(), handle, routing(), rows()));
    } else if (call == "request_finish") {
        auto *made_here = reinterpret_cast<routecap_routing *>(this);
        const bool delivered = returned(routecap_request_finish(
            capturer(), handle, rows(), unless_null("routing", &made_here)));
        if (unless_null("routing", this) != nullptr) made(delivered, "routing", made_here);
    } else if (call == "request_finish_batch") {
        std::vector<routecap_finish_item> items;
        for (const json &item : (*in_)["items"]) {
            const Said said(item);
            fill(items.emplace_back(), said);
            items.back().request = request(said["request"]);
        }
        Array<routecap_finish_item> array(items,
                                          array_size("item_size", sizeof(routecap_finish_item)));
        const bool delivered = returned(routecap_request_finish_batch(
            capturer(), unless_null("items", array.data()), array.size(), items.size()));
        std::vector<int32_t> statuses;
        for (size_t i = 0; delivered && i < items.size(); i++) {
            const routecap_finish_item item = array.at(i);
            statuses.push_back(item.status);
            const json &name = (*out_)["routings"][i];
            name.is_null() ? expect_null(item.routing) : bind(name, item.routing);
        }
        if (delivered) expect_statuses(statuses);
    } else if (call == "request_close") {
        returned(routecap_request_close(capturer(), handle));
    } else if (call == "request_close_batch") {
        std::vector<routecap_request> handles;
        for (const json &name : (*in_)["requests"]) handles.push_back(request(name));
        std::vector<int32_t> statuses(handles.size(), kUntouched);
        int32_t *wanted = out_->has("status") ? statuses.data() : nullptr;
        if (returned(routecap_request_close_batch(
                capturer(), unless_null("requests", handles.data()), wanted, handles.size())))
            expect_statuses(statuses);
    }
}

// Calls copy(options, dst, dst_bytes, mask, mask_bytes, needed) and compares what it wrote.
template <class Copy>
void Replay::copying(Copy &&copy) {
    Struct<routecap_copy_options> options((*in_)["options"]);
    const uint32_t size = options->struct_size;
    EXPECT_EQ(ROUTECAP_OK,
              routecap_copy_options_init(options.get(), sizeof(routecap_copy_options)));
    options->struct_size = size;
    fill(*options, Said((*in_)["options"]));
    const auto dst_bytes = in_->get<size_t>("dst_bytes"),
               mask_bytes = in_->get<size_t>("mask_bytes");
    Elements dst(dst_bytes / element_size(options->dtype), options->dtype),
        mask(mask_bytes, ROUTECAP_DTYPE_U8);
    uint64_t needed = kUntouched;
    void *to = in_->has("dst_bytes") ? dst.data() : nullptr;
    uint8_t *masked = in_->has("mask_bytes") ? mask.data<uint8_t>() : nullptr;
    uint64_t *wanted = out_->has("needed") ? &needed : nullptr;
    const bool delivered = returned(
        copy(unless_null("options", options.get()), to, dst_bytes, masked, mask_bytes, wanted));
    expect_elements(delivered, "dst", dst);
    expect_elements(delivered, "mask", mask);
    expect_number("needed", needed);
}

void Replay::expect_coverage(bool delivered, routecap_coverage &coverage,
                             const Array<routecap_missing> &missing, size_t capacity) {
    if (!delivered || !out_->has("coverage")) return;
    expect_fields(coverage, (*out_)["coverage"]);
    if (out_->has("missing"))
        expect_each(missing, (*out_)["missing"], std::min<size_t>(capacity, coverage.blocks));
}

void Replay::reading(const std::string &call) {
    const routecap_request handle = in_->has("request") ? request((*in_)["request"]) : 0;
    if (call == "request_coverage" || call == "routing_coverage") {
        const auto capacity = in_->get<size_t>("capacity"),
                   size = array_size("missing_size", sizeof(routecap_missing));
        Struct<routecap_coverage> coverage((*in_)["coverage"]);
        Array<routecap_missing> missing(std::vector<routecap_missing>(capacity), size);
        routecap_coverage *filled = unless_null("coverage", coverage.get());
        routecap_missing *blocks = unless_null("missing", capacity > 0 ? missing.data() : nullptr);
        const int32_t status =
            call == "routing_coverage"
                ? routecap_routing_coverage(routing(), filled, blocks, size, capacity)
                : routecap_request_coverage(capturer(), handle, in_->get<uint64_t>("first"),
                                            in_->get<uint64_t>("rows"), filled, blocks, size,
                                            capacity);
        expect_coverage(returned(status), *coverage, missing, capacity);
    } else if (call == "request_extract") {
        auto *extracted = reinterpret_cast<routecap_routing *>(this);
        const auto first = in_->get<uint64_t>("first"), rows = in_->get<uint64_t>("rows");
        const auto mode = in_->get<int32_t>("mode");
        const auto flags = in_->get<uint32_t>("flags");
        const bool delivered = returned(routecap_request_extract(
            capturer(), handle, first, rows, mode, flags, unless_null("routing", &extracted)));
        if (unless_null("routing", this) != nullptr) made(delivered, "routing", extracted);
    } else if (call == "request_extract_batch") {
        std::vector<routecap_extract_item> items;
        for (const json &item : (*in_)["items"]) {
            const Said said(item);
            fill(items.emplace_back(), said);
            items.back().request = request(said["request"]);
        }
        Array<routecap_extract_item> array(items,
                                           array_size("item_size", sizeof(routecap_extract_item)));
        const bool delivered = returned(routecap_request_extract_batch(
            capturer(), unless_null("items", array.data()), array.size(), items.size()));
        std::vector<int32_t> statuses;
        for (size_t i = 0; delivered && i < items.size(); i++) {
            const routecap_extract_item item = array.at(i);
            statuses.push_back(item.status);
            const json &name = (*out_)["routings"][i];
            name.is_null() ? expect_null(item.routing) : bind(name, item.routing);
        }
        if (delivered) expect_statuses(statuses);
    } else if (call == "copy_options_init") {
        Struct<routecap_copy_options> options;
        const auto size = in_->get<size_t>("struct_size", sizeof(routecap_copy_options));
        if (returned(routecap_copy_options_init(unless_null("options", options.get()), size)))
            expect_fields(*options, (*out_)["options"]);
    } else if (call == "request_extract_into") {
        const auto first = in_->get<uint64_t>("first"), rows = in_->get<uint64_t>("rows");
        copying([&](auto... arguments) {
            return routecap_request_extract_into(capturer(), handle, first, rows, arguments...);
        });
    }
}

// What a view says of missing cells is what coverage says of them.
void Replay::expect_reasons(const routecap_view &view, const std::vector<int32_t> &said) {
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    routecap_routing_coverage(routing(), &coverage, nullptr, 0, 0);
    std::vector<routecap_missing> blocks(coverage.blocks);
    routecap_routing_coverage(routing(), &coverage, blocks.data(), sizeof(routecap_missing),
                              blocks.size());
    std::vector<int32_t> reasons(view.rows * view.layers);
    for (const routecap_missing &block : blocks)
        for (uint64_t row = 0; row < block.rows; row++)
            std::fill_n(reasons.begin() +
                            static_cast<ptrdiff_t>((block.first - view.first + row) * view.layers +
                                                   block.first_layer),
                        block.layers, block.reason);
    EXPECT_EQ(reasons, said);
}

void Replay::expect_view(const routecap_view &view, const json &expected) {
    std::vector<int64_t> ids;
    std::vector<int32_t> valid;
    std::vector<uint64_t> tags;
    std::vector<int32_t> reasons;  // of each cell, 0 if it is valid
    uint64_t position = view.first;
    for (size_t s = 0; s < view.segment_count; s++) {
        const auto &segment = *reinterpret_cast<const routecap_segment *>(
            reinterpret_cast<const uint8_t *>(view.segments) + s * view.segment_size);
        EXPECT_EQ(position, segment.first);
        position += segment.rows;
        EXPECT_EQ(segment.ids != nullptr, segment.reason == 0);
        EXPECT_EQ(0u, segment.reserved);
        for (uint64_t row = 0; row < segment.rows; row++) {
            bool any = false;
            for (uint64_t layer = 0; layer < view.layers; layer++) {
                const bool is_valid = cell_is_valid(view, segment, row, layer);
                any |= is_valid;
                valid.push_back(is_valid);
                const int64_t reason = segment.ids == nullptr
                                           ? segment.reason
                                           : id_of_cell(view, segment, row, layer, 0);
                // Memory of others may say anything.
                const bool known =
                    reason >= ROUTECAP_MISSING_ABSENT && reason <= std::ssize(kBestFirst);
                reasons.push_back(is_valid ? 0
                                  : known  ? static_cast<int32_t>(reason)
                                           : ROUTECAP_MISSING_UNWRITTEN);
                for (uint64_t column = 0; column < view.k; column++)
                    ids.push_back(is_valid ? id_of_cell(view, segment, row, layer, column) : -1);
            }
            const uint64_t tag = segment.tags != nullptr ? segment.tags[row] : segment.tag;
            tags.push_back(any ? tag : 0);
        }
    }
    EXPECT_EQ(view.first + view.rows, position);
    expect_reasons(view, reasons);
    routecap_view plain = view;
    expect_fields(plain, expected, [&](const std::string &key, const json &value) {
        const auto of = [&](const auto *array) {
            return written(std::vector(array, array + view.layers));
        };
        const std::map<std::string, json> arrays = {
            {"ids", written(ids)},
            {"valid", written(valid)},
            {"tags", written(tags)},
            {"layer_map", of(view.layer_map)},
            {"layer_experts", of(view.layer_experts)},
            {"layer_provenance", of(view.layer_provenance)}};
        const auto found = arrays.find(key);
        ASSERT_NE(arrays.end(), found) << key;
        expect(value, found->second, key);
    });
}

void Replay::routings(const std::string &call) {
    if (call == "routing_wait") {
        returned(routecap_routing_wait(routing(), in_->get<int64_t>("timeout_ns")));
    } else if (call == "routing_poll") {
        returned(routecap_routing_poll(routing()));
    } else if (call == "routing_view") {
        Struct<routecap_view> view((*in_)["view"]);
        if (!returned(routecap_routing_view(routing(), unless_null("view", view.get())))) return;
        view.expect_filled();
        if (out_->has("view")) expect_view(*view, (*out_)["view"]);
    } else if (call == "routing_split") {
        auto *prompt = reinterpret_cast<routecap_routing *>(this), *generated = prompt;
        const bool delivered = returned(routecap_routing_split(
            routing(), in_->get<uint64_t>("prompt_tokens"), in_->get<uint64_t>("generated_tokens"),
            unless_null("prompt", &prompt), &generated));
        if (unless_null("prompt", this) != nullptr) made(delivered, "prompt", prompt);
        made(delivered, "generated", generated);
    } else if (call == "routing_slice") {
        auto *slice = reinterpret_cast<routecap_routing *>(this);
        const auto first = in_->get<uint64_t>("first"), rows = in_->get<uint64_t>("rows");
        const bool delivered =
            returned(routecap_routing_slice(routing(), first, rows, unless_null("slice", &slice)));
        if (unless_null("slice", this) != nullptr) made(delivered, "slice", slice);
    } else if (call == "routing_merge") {
        std::vector<const routecap_routing *> all;
        for (const json &name : (*in_)["routings"])
            all.push_back(routings_.at(name.get<std::string>()));
        auto *merged = reinterpret_cast<routecap_routing *>(this);
        const bool delivered = returned(
            routecap_routing_merge(unless_null("routings", all.data()), all.size(), 0, &merged));
        made(delivered, "merged", merged);
    } else if (call == "routing_copy_to") {
        copying(
            [&](auto... arguments) { return routecap_routing_copy_to(routing(), arguments...); });
    } else if (call == "routing_retain") {
        routecap_routing *same = routing();
        if (returned(routecap_routing_retain(same))) bind((*out_)["routing"], same);
    } else if (call == "routing_free") {
        known_ = true;
        routecap_routing_free(routing());
        if (in_->has("routing")) routings_.erase((*in_)["routing"].get<std::string>());
    }
}

// Calls make(release, context, &routing) with a release function if the vector lends.
template <class Make>
void Replay::lending(Make &&make) {
    Loan &loan = loans_.emplace_back();
    for (Elements &array : kept_) loan.arrays.push_back(std::move(array));
    const bool lent = in_->get<int>("lent") != 0;
    const routecap_release release = [](void *context) {
        static_cast<Loan *>(context)->released++;
    };
    auto *result = reinterpret_cast<routecap_routing *>(this);
    const bool delivered = returned(make(lent ? release : nullptr, &loan, &result));
    loan.taken = lent && delivered;
    if (!lent) loan.arrays.clear();  // they were copied
    if (unless_null("routing", this) != nullptr) made(delivered, "routing", result);
}

// Bytes that a call is given.
const uint8_t *Replay::kept_bytes(const json &said, size_t &size) {
    const std::vector<uint8_t> data = bytes(said);
    size = data.size();
    auto *memory = static_cast<uint8_t *>(keep(Elements(size, ROUTECAP_DTYPE_U8)));
    std::copy(data.begin(), data.end(), memory);
    return memory;
}

// Bytes that serialize(dst, dst_bytes, &needed) writes.
template <class Serialize>
void Replay::serializing(Serialize &&serialize) {
    uint64_t needed = kUntouched, size = in_->get<uint64_t>("dst_bytes");
    if (!in_->has("dst_bytes")) serialize(nullptr, 0, &size);
    Elements dst(size, ROUTECAP_DTYPE_U8);
    const bool delivered = returned(serialize(size > 0 ? dst.data() : nullptr, size, &needed));
    expect_number("needed", needed);
    EXPECT_TRUE(delivered || dst.untouched());
    if (!delivered || !out_->has("dst")) return;
    const auto *data = dst.data<uint8_t>();
    expect((*out_)["dst"], written_bytes({data, data + needed}), "dst");
    for (size_t i = needed; i < size; i++) EXPECT_EQ(kUntouched, dst.at(i).get<int>());
}

void Replay::serialized(const std::string &call) {
    if (call == "routing_serialize") {
        serializing([&](void *dst, size_t size, uint64_t *needed) {
            return routecap_routing_serialize(routing(), dst, size, needed);
        });
    } else if (call == "routing_deserialize") {
        size_t size = 0;
        const uint8_t *data = kept_bytes("data", size);
        lending([&](routecap_release release, void *context, routecap_routing **made) {
            const auto flags = in_->get<uint32_t>("flags");
            return routecap_routing_deserialize(unless_null("data", data), size, flags, release,
                                                context, unless_null("routing", made));
        });
    } else if (call == "routing_import") {
        const Said said((*in_)["view"]);
        Struct<routecap_view> view((*in_)["view"]);
        fill(*view, said);
        view->layer_map = kept_i32(said, "layer_map");
        view->layer_experts = reinterpret_cast<const uint32_t *>(kept_i32(said, "layer_experts"));
        view->layer_provenance = kept_i32(said, "layer_provenance");
        std::vector<routecap_segment> segments;
        for (const json &item : said["segments"]) {
            const Said one(item);
            routecap_segment &segment = segments.emplace_back();
            fill(segment, one);
            if (one.has("ids")) segment.ids = keep(Elements(one["ids"], view->dtype));
            if (one.has("validity"))
                segment.validity =
                    static_cast<uint8_t *>(keep(Elements(one["validity"], ROUTECAP_DTYPE_U8)));
            if (one.has("tags"))
                segment.tags =
                    static_cast<uint64_t *>(keep(Elements(one["tags"], ROUTECAP_DTYPE_I64)));
        }
        view->segments = segments.data();
        view->segment_count = segments.size();
        view->segment_size = said.get<size_t>("segment_size", sizeof(routecap_segment));
        lending([&](routecap_release release, void *context, routecap_routing **made) {
            return routecap_routing_import(unless_null("view", view.get()),
                                           in_->get<uint32_t>("flags"), release, context, made);
        });
    } else if (call == "serialized_info") {
        size_t size = 0;
        const uint8_t *data = kept_bytes("data", size);
        Struct<routecap_serialized> info((*in_)["info"]);
        const int32_t status = routecap_serialized_info(unless_null("data", data), size,
                                                        unless_null("info", info.get()));
        if (returned(status)) expect_fields(*info, (*out_)["info"]);
    } else if (call == "serialized_splice") {
        size_t head_bytes = 0, tail_bytes = 0;
        const uint8_t *head = kept_bytes("head", head_bytes),
                      *tail = kept_bytes("tail", tail_bytes);
        Struct<routecap_splice> splice((*in_)["splice"]);
        const auto row = in_->get<uint64_t>("row");
        size_t capacity = in_->get<size_t>("capacity");
        if (!in_->has("capacity")) {
            const int32_t asked = routecap_serialized_splice(
                head, head_bytes, tail, tail_bytes, row, nullptr, 0, nullptr, 0, 0, splice.get());
            if (asked == ROUTECAP_ERR_BUFFER_TOO_SMALL) capacity = splice->header_bytes;
        }
        Elements header(capacity, ROUTECAP_DTYPE_U8);
        uint8_t *target = capacity > 0 ? header.data<uint8_t>() : nullptr;
        routecap_piece pieces[ROUTECAP_MAX_PIECES];
        const bool delivered = returned(
            routecap_serialized_splice(head, head_bytes, tail, tail_bytes, row, target, capacity,
                                       pieces, sizeof pieces[0], std::size(pieces), splice.get()));
        EXPECT_TRUE(delivered || header.untouched());
        if (!delivered) return;
        if (out_->has("splice")) expect_fields(*splice, (*out_)["splice"]);
        const uint8_t *sources[] = {header.data<uint8_t>(), head, tail};
        std::vector<uint8_t> whole;
        for (uint32_t i = 0; i < splice->pieces; i++) {
            const routecap_piece &piece = pieces[i];
            whole.insert(whole.end(), sources[piece.source] + piece.offset,
                         sources[piece.source] + piece.offset + piece.bytes);
        }
        EXPECT_EQ(splice->bytes, whole.size());
        auto *result = reinterpret_cast<routecap_routing *>(this);
        EXPECT_GE(
            routecap_routing_deserialize(whole.data(), whole.size(), 0, nullptr, nullptr, &result),
            0)
            << routecap_last_error();
        made(result != nullptr, "routing", result);
    }
}

void Replay::sequences(const std::string &call) {
    const auto expect_report = [&](Struct<routecap_append_report> &report) {
        report.expect_filled();
        if (out_->has("report")) expect_fields(*report, (*out_)["report"]);
    };
    auto *made = reinterpret_cast<routecap_sequence *>(this);
    if (call == "sequence_create") {
        Struct<routecap_sequence_config> config((*in_)["config"]);
        const Said said((*in_)["config"]);
        fill(*config, said);
        config->layer_map = kept_i32(said, "layer_map");
        config->layer_experts = reinterpret_cast<const uint32_t *>(kept_i32(said, "layer_experts"));
        const bool delivered = returned(routecap_sequence_create(config.get(), &made));
        this->made(delivered, "sequence", made);
    } else if (call == "sequence_free") {
        known_ = true;
        routecap_sequence_free(sequence());
        sequences_.erase((*in_)["sequence"].get<std::string>());
    } else if (call == "sequence_append") {
        const std::vector<int32_t> tokens = numbers<int32_t>((*in_)["tokens"]);
        Struct<routecap_append_options> options;
        if (in_->has("options")) fill(*options, Said((*in_)["options"]));
        Struct<routecap_append_report> report;
        if (returned(routecap_sequence_append(
                sequence(), tokens.data(), in_->get<uint64_t>("token_start"), tokens.size(),
                routing(), in_->has("options") ? options.get() : nullptr, report.get())))
            expect_report(report);
    } else if (call == "sequence_truncate") {
        returned(routecap_sequence_truncate(sequence(), in_->get<uint64_t>("tokens")));
    } else if (call == "sequence_fork") {
        const auto tokens = in_->get<uint64_t>("tokens");
        const bool delivered = returned(routecap_sequence_fork(sequence(), tokens, &made));
        this->made(delivered, "child", made);
    } else if (call == "sequence_routing") {
        auto *rows = reinterpret_cast<routecap_routing *>(this);
        const bool delivered = returned(routecap_sequence_routing(sequence(), &rows));
        this->made(delivered, "routing", rows);
    } else if (call == "sequence_spans") {
        const auto capacity = in_->get<size_t>("capacity");
        Array<routecap_sequence_span> spans(std::vector<routecap_sequence_span>(capacity),
                                            sizeof(routecap_sequence_span));
        uint64_t count = 0;
        if (!returned(
                routecap_sequence_spans(sequence(), spans.data(), spans.size(), capacity, &count)))
            return;
        expect_number("count", count);
        expect_each(spans, (*out_)["spans"], std::min<size_t>(count, capacity));
    } else if (call == "sequence_tokens") {
        Elements tokens(in_->get<size_t>("capacity"), ROUTECAP_DTYPE_I32);
        uint64_t count = 0;
        const bool delivered =
            returned(routecap_sequence_tokens(sequence(), in_->get<uint64_t>("first"),
                                              tokens.data<int32_t>(), tokens.count(), &count));
        EXPECT_TRUE(delivered || tokens.untouched());
        if (!delivered) return;
        expect_number("count", count);
        const auto *written_here = tokens.data<int32_t>();
        const std::vector<int32_t> answered(written_here,
                                            written_here + std::min<size_t>(count, tokens.count()));
        expect((*out_)["tokens"], written(answered), "tokens");
    } else if (call == "sequence_report") {
        Struct<routecap_append_report> report;
        if (returned(routecap_sequence_report(sequence(), report.get()))) expect_report(report);
    } else if (call == "sequence_serialize") {
        serializing([&](void *dst, size_t size, uint64_t *needed) {
            return routecap_sequence_serialize(sequence(), in_->get<uint32_t>("flags"), dst, size,
                                               needed);
        });
    } else if (call == "sequence_deserialize") {
        size_t size = 0;
        const uint8_t *data = kept_bytes("data", size);
        const bool delivered = returned(routecap_sequence_deserialize(data, size, 0, &made));
        this->made(delivered, "sequence", made);
    }
}

void Replay::stores(const std::string &call) {
    const auto generation = in_->get<uint64_t>("generation");
    const auto expect_reasons = [&](const std::vector<int32_t> &reasons) {
        expect((*out_)["reasons"], written(reasons), "reasons");
    };
    if (call == "store_config_init") {
        Struct<routecap_store_config> made;
        if (returned(routecap_store_config_init(made.get(), sizeof(routecap_store_config))))
            expect_fields(*made, (*out_)["config"]);
    } else if (call == "store_create") {
        Struct<routecap_store_config> config((*in_)["config"]);
        fill(*config, Said((*in_)["config"]));
        Struct<routecap_config> shape((*in_)["shape"]);
        fill_config(*shape, Said((*in_)["shape"]));
        auto *made = reinterpret_cast<routecap_store *>(this);
        if (!returned(routecap_store_create(config.get(), shape.get(), &made)))
            return expect_null(made);
        const std::string name = (*out_)["store"].get<std::string>();
        stores_[name] = made;
        key_bytes_[name] = config->key_bytes != 0 ? config->key_bytes : 32;
    } else if (call == "store_free") {
        known_ = true;
        routecap_store_free(store());
        stores_.erase((*in_)["store"].get<std::string>());
    } else if (call == "store_stats") {
        Struct<routecap_store_counts> counts;
        if (!returned(routecap_store_stats(store(), counts.get()))) return;
        expect_fields(*counts, (*out_)["counts"]);
        counts.expect_filled();
    } else if (call == "store_advance") {
        returned(routecap_store_advance(store(), generation));
    } else if (call == "store_contains") {
        const Keys k = keys((*in_)["keys"]);
        std::vector<int32_t> reasons(k.count, kUntouched);
        uint64_t leading = kUntouched;
        if (!returned(routecap_store_contains(store(), k.bytes, k.count, generation, reasons.data(),
                                              &leading)))
            return;
        expect_reasons(reasons);
        expect_number("leading", leading);
    } else if (call == "store_retain") {
        const Keys k = keys((*in_)["keys"]);
        std::vector<int32_t> reasons(k.count, kUntouched);
        if (returned(routecap_store_retain(store(), k.bytes, k.count, reasons.data())))
            expect_reasons(reasons);
    } else if (call == "store_release") {
        const Keys k = keys((*in_)["keys"]);
        returned(routecap_store_release(store(), k.bytes, k.count));
    } else if (call == "store_evict") {
        const Keys k = keys((*in_)["keys"]);
        uint64_t evicted = kUntouched;
        if (returned(routecap_store_evict(store(), k.bytes, k.count, &evicted)))
            expect_number("evicted", evicted);
    } else if (call == "key_chain") {
        size_t seed_bytes = 0;
        const uint8_t *seed = kept_bytes("seed", seed_bytes);
        const std::vector<int32_t> tokens = numbers<int32_t>((*in_)["tokens"]);
        std::vector<uint8_t> made(bytes((*out_)["keys"]).size(), kUntouched);
        if (returned(routecap_key_chain(seed, seed_bytes, tokens.data(), tokens.size(),
                                        in_->get<uint32_t>("block_rows"),
                                        in_->get<uint32_t>("key_bytes"), made.data(), made.size())))
            expect((*out_)["keys"], written_bytes(made), "keys");
    }
}

// What requests and stores have to do with one another.
void Replay::prefixes(const std::string &call) {
    const auto generation = in_->get<uint64_t>("generation");
    if (call == "request_publish") {
        const Keys k = keys((*in_)["keys"]);
        returned(routecap_request_publish(capturer(), request((*in_)["request"]), store(),
                                          in_->get<uint64_t>("first"), k.bytes, k.count,
                                          generation));
    } else if (call == "request_adopt") {
        const Keys k = keys((*in_)["keys"]);
        Struct<routecap_adoption> found;
        if (!returned(routecap_request_adopt(capturer(), request((*in_)["request"]), store(),
                                             in_->get<uint64_t>("first"), k.bytes, k.count,
                                             generation, found.get())))
            return;
        expect_fields(*found, (*out_)["adoption"]);
        found.expect_filled();
    } else if (call == "request_publish_batch" || call == "request_adopt_batch") {
        const bool publishes = call == "request_publish_batch";
        std::vector<routecap_publish_item> published;
        std::vector<routecap_adopt_item> adopted;
        std::vector<int32_t> statuses;
        for (const json &item : (*in_)["items"]) {
            const Said said(item);
            const Keys k = keys(said["keys"]);
            const routecap_request r = request(said["request"]);
            const auto first = said.get<uint64_t>("first");
            if (publishes)
                published.push_back({r, first, k.bytes, k.count, kUntouched, 0});
            else
                adopted.push_back({r, first, k.bytes, k.count, 77, 77, 77, 77, 77, kUntouched, 0});
        }
        returned(publishes
                     ? routecap_request_publish_batch(capturer(), store(), published.data(),
                                                      sizeof published[0], published.size(),
                                                      generation)
                     : routecap_request_adopt_batch(capturer(), store(), adopted.data(),
                                                    sizeof adopted[0], adopted.size(), generation));
        for (const auto &item : published) statuses.push_back(item.status);
        for (const auto &item : adopted) statuses.push_back(item.status);
        expect_statuses(statuses);
        for (size_t i = 0; i < adopted.size(); i++) {
            const routecap_adopt_item &item = adopted[i];
            routecap_adoption found{
                sizeof found,       0,         item.rows, item.found, item.evicted,
                item.not_published, item.stale};
            expect_fields(found, (*out_)["adoptions"][i]);
        }
    }
}

// ---- All vectors of a folder

class Vectors : public testing::Test {
public:
    explicit Vectors(const json &vector) : vector_(vector) {}
    void TestBody() override { Replay(vector_).run(); }

private:
    const json &vector_;
};

std::string identifier(const std::string &name) {
    std::string result;
    for (char c : name) result += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return result;
}

using Topics = std::map<std::filesystem::path, json>;  // by the file

Topics read_all(const std::filesystem::path &folder) {
    Topics topics;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator(folder, error)) {
        if (entry.path().extension() != ".json") continue;
        std::ifstream file(entry.path());
        topics[entry.path()] = json::parse(file);
    }
    return topics;
}

void add_all(const Topics &topics) {
    for (const auto &[path, topic] : topics)
        for (const json &vector : topic["vectors"])
            testing::RegisterTest(
                identifier(topic["topic"]).c_str(), identifier(vector["name"]).c_str(), nullptr,
                nullptr, __FILE__, __LINE__,
                [&vector = vector]() -> Vectors * { return new Vectors(vector); });
}

}  // namespace
}  // namespace vectors

int main(int argc, char **argv) {
    testing::InitGoogleTest(&argc, argv);
    unsetenv("ROUTECAP_CHECKED");  // the vectors say what becomes of slips that are forgiven
    const char *folder = std::getenv("ROUTECAP_VECTORS");
    auto topics = vectors::read_all(folder != nullptr ? folder : ROUTECAP_VECTORS_DEFAULT);
    if (topics.empty()) {
        std::fprintf(stderr, "no vectors found\n");
        return 1;
    }
    vectors::add_all(topics);
    const std::string option = argc > 1 ? argv[1] : "";
    const bool all_wrong = option == "--all-wrong";
    vectors::takes_answers = option == "--answers";
    const int failed = RUN_ALL_TESTS();
    if (vectors::takes_answers)
        for (const auto &[path, topic] : topics) std::ofstream(path) << topic;
    if (!all_wrong) return failed;
    const auto *tests = testing::UnitTest::GetInstance();
    std::printf("of %d wrong vectors %d were noticed\n", tests->test_to_run_count(),
                tests->failed_test_count());
    return tests->failed_test_count() != tests->test_to_run_count();
}
