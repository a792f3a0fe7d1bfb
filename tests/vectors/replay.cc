// Replays the conformance vectors through the C API: every call of every vector, with everything
// that README.md says is compared. calls.h, which is generated, has the calls. Usage:
//
//     vectors [options of GoogleTest]   those in the folder that ROUTECAP_VECTORS names, or else in
//                                       the one that it was built for
//     vectors --all-wrong               succeeds if every vector fails: those of
//                                       files.py --mutate. Of the author, those that are wrong where
//                                       it answers
//     vectors --answers                 writes what the library answers into the files, wherever a
//                                       vector expects something else
//
// With author.cc it is the program `author`, in which the model of tests/fuzz answers in the place of
// the library, whatever the model knows.
#include "calls.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "../support/declared.h"
#include "../support/views.h"
#ifdef ROUTECAP_VECTORS_AUTHOR
#include "author.h"
#endif

namespace vectors {

// ---- One vector ----------------------------------------------------------------------------

Replay::~Replay() {
    for (const auto &[name, routing] : named<routecap_routing>()) routecap_routing_free(routing);
    for (const auto &[name, sequence] : named<routecap_sequence>())
        routecap_sequence_free(sequence);
    for (const auto &[name, made] : named<routecap_capturer>()) routecap_capturer_destroy(made);
    for (const auto &[name, store] : named<routecap_store>()) routecap_store_free(store);
    for (const Loan &loan : loans_)
        EXPECT_EQ(loan.taken, loan.released) << "times that lent memory was released";
}

void Replay::run() {
    size_t number = 0;
#ifdef ROUTECAP_VECTORS_AUTHOR
    author::Vector model;
    const json wrong = vector_.value("wrong", json());
#endif
    for (const json &said : vector_["calls"]) {
#ifdef ROUTECAP_VECTORS_AUTHOR
        if (wrong.is_object() && wrong["call"] == number && !model.answered(said, wrong))
            GTEST_SKIP();
        if (!model.answers(said) && ++number) continue;
#endif
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
    dtype = ROUTECAP_DTYPE_U8, weights_dtype = 0, needed = elements = nullptr, later_ = nullptr;
    if (in.has("capturer") && in["capturer"].is_string())
        weights_dtype = weights_of_[in["capturer"]];
    kept_.clear(), segments_.clear();
    if (in.has("positions")) {  // of rows that arrive: written where the step looks for them
        Elements &to = *positions_of_.at({in["capturer"], in.get<uint64_t>("step")});
        for (size_t i = 0; i < in["positions"].size(); i++) to.set(i, in["positions"][i]);
    }
    if (const auto found = calls().find(name); found != calls().end())
        found->second(*this);
    else
        known_ = by_hand(name);
    if (later_ != nullptr && out.has("step"))
        positions_of_[{in["capturer"], out.get<uint64_t>("step")}] = later_;
    EXPECT_TRUE(known_) << "no such call";
}

bool Replay::expect_status(int32_t status) {
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

void Replay::bind(const json &name, uint64_t handle) {
    if (name.is_null()) return;  // not asked for
    if (name.is_number()) return expect(name, written(handle), "a handle");
    EXPECT_NE(uint64_t{0}, handle);
    for (const auto &[other, known] : requests_) EXPECT_NE(known, handle) << other;
    EXPECT_TRUE(requests_.emplace(name.get<std::string>(), handle).second);
}

Loan &Replay::lend() {
    Loan &loan = loans_.emplace_back();
    loan.lent = in_->get<int>("lent") != 0;
    if (loan.lent)
        for (Elements &array : kept_) loan.arrays.push_back(std::move(array));
    return loan;
}

const uint8_t *Replay::keep_bytes(const json &said, size_t &size) {
    const std::vector<uint8_t> data = bytes(said);
    size = data.size();
    auto *memory = static_cast<uint8_t *>(keep(Elements(size, ROUTECAP_DTYPE_U8)));
    std::copy(data.begin(), data.end(), memory);
    return memory;
}

void Replay::expect_pointer(const json &expected, const void *pointer, const std::string &what) {
    if (!expected.is_object()) {
        EXPECT_EQ(expected.is_boolean(), pointer != nullptr) << what;
        return;
    }
    EXPECT_EQ(memory_.at(expected["memory"]).data(expected["start"].get<size_t>()), pointer)
        << what;
}

// ---- What a view shows

namespace {

bool cell_is_weighted(const routecap_view &view, const routecap_segment &segment, uint64_t row,
                      uint64_t layer) {
    if (segment.weights == nullptr) return false;
    const uint8_t *bits = segment.weights_validity + row * view.row_stride;
    return (bits[layer / 8] >> layer % 8 & 1) != 0;
}
json weight_of_cell(const routecap_view &view, const routecap_segment &segment, uint64_t row,
                    uint64_t layer, uint64_t column) {
    Elements one(1, view.weights_dtype);
    const size_t size = element_size(view.weights_dtype);
    std::memcpy(one.data(),
                static_cast<const uint8_t *>(segment.weights) + row * view.row_stride +
                    (layer * view.k + column) * size,
                size);
    return one.at(0);
}

}  // namespace

// What a view says of missing cells is what coverage says of them.
void Replay::expect_reasons(const routecap_view &view, const std::vector<int32_t> &said) {
    routecap_coverage coverage{};
    coverage.struct_size = sizeof coverage;
    const auto *routing = object<routecap_routing>("routing");
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, nullptr, 0, 0), 0);
    std::vector<routecap_missing> blocks(coverage.blocks);
    EXPECT_GE(routecap_routing_coverage(routing, &coverage, blocks.data(), sizeof blocks[0],
                                        blocks.size()),
              0);
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
    json weights = json::array();  // 0 of a cell that has none
    std::vector<int32_t> weighted;
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
                const uint64_t used = is_valid ? experts_of_cell(view, segment, row, layer) : 0;
                for (uint64_t column = 0; column < view.k; column++)
                    ids.push_back(!is_valid       ? -1
                                  : column < used ? id_of_cell(view, segment, row, layer, column)
                                                  : ROUTECAP_NO_EXPERT);
                const bool has_weights = cell_is_weighted(view, segment, row, layer);
                weighted.push_back(has_weights);
                for (uint64_t column = 0; column < view.k; column++)
                    weights.push_back(
                        has_weights ? weight_of_cell(view, segment, row, layer, column) : json(0));
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
        const std::map<std::string, json> arrays = {{"ids", written(ids)},
                                                    {"valid", written(valid)},
                                                    {"tags", written(tags)},
                                                    {"weights", weights},
                                                    {"weighted", written(weighted)},
                                                    {"layer_map", of(view.layer_map)},
                                                    {"layer_experts", of(view.layer_experts)},
                                                    {"layer_provenance", of(view.layer_provenance)},
                                                    {"layer_k", of(view.layer_k)},
                                                    {"layer_min_k", of(view.layer_min_k)},
                                                    {"layer_visit", of(view.layer_visit)}};
        const auto found = arrays.find(key);
        ASSERT_NE(arrays.end(), found) << key;
        expect(value, found->second, key);
    });
}

// ---- Calls that are made by hand

bool Replay::by_hand(const std::string &call) {
    if (call == "version") {
        expect_value(out()["version"], routecap_version(), "version");
    } else if (call == "get_api") {
        const auto *api = routecap_get_api(number<uint32_t>("major"), number<uint32_t>("minor"));
        expect_value(out()["available"], api != nullptr ? 1 : 0, "available");
    } else if (call == "status_name") {
        expect(out()["name"], routecap_status_name(number<int32_t>("status")), "name");
    } else if (call == "routing_retain") {
        auto *same = object<routecap_routing>("routing");
        if (expect_status(routecap_routing_retain(same))) bind(out()["routing"], same);
    } else if (call == "serialized_splice") {
        splice();
    } else if (call == "sink_write") {
        write_sink();
    } else {
        return false;
    }
    return true;
}

// As a router does that was given the sink's address.
void Replay::write_sink() {
    Struct<routecap_sink> sink;
    ASSERT_EQ(ROUTECAP_OK, routecap_sink_layer(object<routecap_capturer>("capturer"),
                                               number<uint32_t>("layer"), sink.get()));
    Elements ids(in()["ids"], sink->dtype);
    const size_t size = element_size(sink->dtype), columns = sink->k,
                 stride = static_cast<size_t>(sink->row_stride);
    auto *to = static_cast<uint8_t *>(sink->ids) + in_->get<size_t>("first_row") * stride * size;
    for (size_t row = 0; row < ids.count() / columns; row++, to += stride * size)
        std::memcpy(to, ids.data(row * columns), columns * size);
    if (!in_->has("weights")) return;
    Elements weights(in()["weights"], weights_dtype);
    const size_t bytes = element_size(weights_dtype);
    to = static_cast<uint8_t *>(sink->weights) + in_->get<size_t>("first_row") * stride * bytes;
    for (size_t row = 0; row < weights.count() / columns; row++, to += stride * bytes)
        std::memcpy(to, weights.data(row * columns), columns * bytes);
}

// Asks for the size of the header, unless the vector says it; then puts the pieces together.
void Replay::splice() {
    size_t head_bytes = 0, tail_bytes = 0;
    const uint8_t *head = keep_bytes(in()["head"], head_bytes),
                  *tail = keep_bytes(in()["tail"], tail_bytes);
    Struct<routecap_splice> splice(in()["splice"]);
    const auto row = in_->get<uint64_t>("row");
    size_t capacity = in_->get<size_t>("capacity");
    if (!in_->has("capacity")) {
        const int32_t asked = routecap_serialized_splice(head, head_bytes, tail, tail_bytes, row,
                                                         nullptr, 0, nullptr, 0, 0, splice.get());
        if (asked == ROUTECAP_ERR_BUFFER_TOO_SMALL) capacity = splice->header_bytes;
    }
    Elements header(capacity, ROUTECAP_DTYPE_U8);
    uint8_t *target = capacity > 0 ? header.data<uint8_t>() : nullptr;
    routecap_piece pieces[ROUTECAP_MAX_PIECES];
    const bool delivered = expect_status(
        routecap_serialized_splice(head, head_bytes, tail, tail_bytes, row, target, capacity,
                                   pieces, sizeof pieces[0], std::size(pieces), splice.get()));
    EXPECT_TRUE(delivered || header.untouched());
    if (!delivered) return;
    if (out_->has("splice")) expect_fields(*splice, out()["splice"]);
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
        routecap_routing_deserialize(whole.data(), whole.size(), 0, nullptr, nullptr, &result), 0)
        << routecap_last_error();
    made(result != nullptr, "routing", result);
}

namespace {

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
        json topic = json::parse(file);
#ifdef ROUTECAP_VECTORS_AUTHOR
        // Of the layout of C's structs, and of NULL.
        if (topic["topic"].get<std::string>().rfind("abi", 0) == 0) continue;
#endif
        topics[entry.path()] = std::move(topic);
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
#ifdef ROUTECAP_VECTORS_AUTHOR
    vectors::unknown_fields = author::kUnknown;
#endif
    const int failed = RUN_ALL_TESTS();
#ifdef ROUTECAP_VECTORS_AUTHOR
    std::printf("%sauthor: %zu fields have none: memory, and how views are divided\n",
                author::summary().c_str(), vectors::unknown_seen);
#endif
    if (vectors::takes_answers)
        for (const auto &[path, topic] : topics) std::ofstream(path) << topic;
    if (!all_wrong) return failed;
    const auto *tests = testing::UnitTest::GetInstance();
    // Of the author, those that are wrong where it answers nothing: less than half.
    const int skipped = tests->skipped_test_count(), wrong = tests->test_to_run_count() - skipped;
    std::printf("of %d wrong vectors %d were noticed, and %d were skipped\n", wrong,
                tests->failed_test_count(), skipped);
    return tests->failed_test_count() != wrong || wrong < skipped;
}
