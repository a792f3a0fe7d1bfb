// The arguments of calls, one class for each kind that dev/generate/vectors.py finds in signatures:
// what a vector gives becomes memory of C, and what the call leaves there is compared.
#pragma once

#include "values.h"

#include <deque>
#include <map>
#include <optional>
#include <tuple>

namespace vectors {

// Arrays that are lent with a release function, until the end of the vector.
struct Loan {
    std::vector<Elements> arrays;
    bool lent = false, taken = false;
    int released = 0;
    routecap_release release() const {
        if (!lent) return nullptr;
        return [](void *loan) { static_cast<Loan *>(loan)->released++; };
    }
    void after(bool delivered) { taken = lent && delivered; }
};

// One vector: what it has made so far, and the call that is made.
class Replay {
public:
    explicit Replay(const json &vector) : vector_(vector) {}
    ~Replay();
    void run();

    // ---- What the call is given

    const Said &in() const { return *in_; }
    const Said &out() const { return *out_; }
    bool null(const char *key) const {  // whether the vector says so
        if (in_->has("null"))
            for (const json &each : in()["null"])
                if (each == key) return true;
        return false;
    }
    template <class T>
    std::map<std::string, T *> &named() {
        return std::get<std::map<std::string, T *>>(objects_);
    }
    template <class T>
    T *object(const char *key) {
        return in_->has(key) ? named<T>().at(in()[key].get<std::string>()) : nullptr;
    }
    // A request may be a name or a number.
    template <class T>
    T number_of(const json &value) const {
        if (value.is_string())
            if (const auto known = requests_.find(value.get<std::string>());
                known != requests_.end())
                return static_cast<T>(known->second);
        return vectors::number<T>(value);
    }
    template <class T>
    T number(const char *key) const {
        return in_->has(key) ? number_of<T>(in()[key]) : T{};
    }
    routecap_stream stream() const {
        return reinterpret_cast<routecap_stream>(in_->get<uintptr_t>("stream"));
    }
    // As many as the vector says, or as it expects.
    size_t length(const char *count, const char *key) const {
        return in_->has(count) ? in_->get<size_t>(count) : out()[key].size();
    }
    template <class T>
    void forget(const char *key) {
        known_ = true;
        if (in_->has(key)) named<T>().erase(in()[key].get<std::string>());
    }
    Loan &lend();

    // Memory that lives as long as the call.
    void *keep(Elements &&elements, size_t first = 0) {
        return kept_.emplace_back(std::move(elements)).data(first);
    }
    const uint8_t *keep_bytes(const json &said, size_t &size);
    size_t key_bytes() { return key_bytes_.at(in()["store"].get<std::string>()); }

    template <class T>
    void fill(T &s, const Said &said);

    // ---- What it returns

    // The status against the one expected, its text, and what the call wrote.
    template <class... Outputs>
    void returned(int32_t status, Outputs &...outputs) {
        [[maybe_unused]] const bool delivered = expect_status(status);
        (outputs.after(delivered), ...);
    }
    // Whether it delivers its outputs.
    bool expect_status(int32_t status);
    bool succeeds() const {
        return !call_->contains("status") ||
               (*call_)["status"].get<std::string>().find("_ERR_") == std::string::npos;
    }

    template <class T>
    void bind(const json &name, T *object) {
        EXPECT_NE(nullptr, object);
        EXPECT_TRUE(named<T>().emplace(name.get<std::string>(), object).second);
        if constexpr (std::is_same_v<T, routecap_capturer>) weights_of_[name] = weights_dtype;
        if constexpr (std::is_same_v<T, routecap_store>) {
            const auto said = in()["config"].find("key_bytes");
            key_bytes_[name] =
                said != in()["config"].end() && *said != 0 ? said->get<size_t>() : 32;
        }
    }
    void bind(const json &name, uint64_t handle);  // of a request; or the ticket of a step
    template <class T>
    void made(bool delivered, const char *key, T handle) {
        if (!delivered) {
            EXPECT_EQ(T{}, handle) << key;
            return;
        }
        if constexpr (std::is_pointer_v<T>) {
            auto &all = named<std::remove_pointer_t<T>>();
            if (handle != nullptr && (!out().has(key) || !out()[key].is_string() ||
                                      all.count(out()[key].template get<std::string>()) > 0)) {
                ADD_FAILURE() << key << " was made, and the vector has no name for it";
                all.emplace("without a name " + std::to_string(all.size()), handle);  // to be freed
                return;
            }
        }
        bind(out()[key], handle);
    }
    // A pointer in a struct that the library filled.
    void expect_pointer(const json &expected, const void *pointer, const std::string &what);
    void expect_view(const routecap_view &view, const json &expected);

    int32_t dtype = ROUTECAP_DTYPE_U8;   // of elements that come next
    int32_t weights_dtype = 0;           // of weights that come next
    const uint64_t *needed = nullptr;    // how many bytes the call needs
    const uint64_t *elements = nullptr;  // how many elements there are of an array

private:
    void call(const json &said);
    bool by_hand(const std::string &call);
    void write_sink();
    void splice();
    void keep_positions(const json &said);
    void expect_reasons(const routecap_view &view, const std::vector<int32_t> &said);

    // Before the fields of a struct are set, and after.
    template <class T>
    void preset(T &, const Said &) {}
    void preset(routecap_copy_options &s, const Said &) {
        const uint32_t size = s.struct_size;
        EXPECT_EQ(ROUTECAP_OK, routecap_copy_options_init(&s, sizeof s));
        s.struct_size = size;
    }
    void preset(routecap_router &s, const Said &said) {
        const uint32_t size = s.struct_size;
        if (said.has("method")) {
            EXPECT_EQ(ROUTECAP_OK, routecap_router_init(&s, sizeof s, said.get<int>("method")));
        }
        s.struct_size = size;
    }
    template <class T>
    void settle(T &, const Said &) {}
    void settle(routecap_config &s, const Said &) {
        if (!in_->has("budget_pages")) return;
        Struct<routecap_memory> memory;
        EXPECT_EQ(ROUTECAP_OK, routecap_config_memory(&s, memory.get()));
        s.budget_bytes = in_->get<uint64_t>("budget_pages") * memory->page_bytes;
    }
    void settle(routecap_source &s, const Said &) {  // the tables of layers have one size
        if (in_->has("layers"))
            for (const json &layer : in()["layers"])
                if (layer.contains("table"))
                    s.table_size = static_cast<uint32_t>(layer["table"].size());
    }
    void settle(routecap_issue_options &s, const Said &) {
        if (s.snapshot != ROUTECAP_SNAPSHOT_LATER || s.positions == nullptr) return;
        positions_.push_back(std::move(kept_.back()));
        kept_.pop_back();
        later_ = &positions_.back();
    }

    template <class T, class Field>
    void point(T &s, const std::string &name, Field &field, const Said &said);

    const json &vector_;
    std::tuple<std::map<std::string, routecap_routing *>,
               std::map<std::string, routecap_sequence *>,
               std::map<std::string, routecap_capturer *>, std::map<std::string, routecap_store *>>
        objects_;
    std::map<std::string, uint64_t> requests_;
    std::map<std::string, size_t> key_bytes_;    // of stores
    std::map<std::string, int32_t> weights_of_;  // of capturers: their dtype
    std::map<std::string, Elements> memory_;     // of bound sinks
    // Positions of steps whose rows arrive later, and of which step each are.
    std::deque<Elements> positions_;
    std::map<std::pair<std::string, uint64_t>, Elements *> positions_of_;
    Elements *later_ = nullptr;
    std::deque<Loan> loans_;

    const json *call_ = nullptr;  // with `in` and `out`
    const Said *in_ = nullptr, *out_ = nullptr;
    std::deque<Elements> kept_;
    std::deque<std::vector<uint8_t>> segments_;
    bool known_ = false;
};

// ---- Structs that are given

// Sets the field of this name, if there is one.
template <class T>
void set(T &s, const std::string &name, size_t value) {
    fields(s, [&](const std::string &each, auto &field) {
        if (each == name) field = static_cast<std::remove_reference_t<decltype(field)>>(value);
    });
}

// The numbers that are given for a pointer, as it has them.
template <class T>
constexpr int32_t kDtypeOf = sizeof(T) == 1   ? ROUTECAP_DTYPE_U8
                             : sizeof(T) == 8 ? ROUTECAP_DTYPE_I64
                                              : ROUTECAP_DTYPE_I32;

template <class T, class Field>
void Replay::point(T &s, const std::string &name, Field &field, const Said &said) {
    if constexpr (std::is_integral_v<Field>) {  // a request
        field = number_of<Field>(said[name]);
    } else if (!said.has(name)) {
        return;
    } else if constexpr (std::is_same_v<Field, const routecap_segment *>) {
        Array<routecap_segment> all(std::vector<routecap_segment>(said[name].size()),
                                    sizeof(routecap_segment));
        for (size_t i = 0; i < said[name].size(); i++) fill(*(all.data() + i), Said(said[name][i]));
        segments_.emplace_back(all.take());
        field = reinterpret_cast<const routecap_segment *>(segments_.back().data());
        s.segment_count = said[name].size();
        if (!said.has("segment_size")) s.segment_size = sizeof(routecap_segment);
    } else if constexpr (std::is_same_v<Field, float *>) {  // the call writes it
        const size_t wanted = out_->has(name) ? out()[name].size() : 0;
        field = static_cast<float *>(keep(Elements(wanted, ROUTECAP_DTYPE_F32)));
    } else if (std::is_same_v<Field, const void *> && name == "keys") {
        size_t size = 0;
        if constexpr (std::is_same_v<Field, const void *>) field = keep_bytes(said[name], size);
        set(s, "count", size / key_bytes());
    } else if (said[name].is_object()) {  // the memory of a sink
        const Said memory(said[name]);
        const auto count = memory.get<size_t>("elements");
        auto &bound = memory_
                          .try_emplace(memory["memory"].get<std::string>(), count,
                                       name == "weights" ? weights_dtype : dtype)
                          .first->second;
        field = static_cast<Field>(bound.data(memory.get<size_t>("start")));
    } else {
        const json list = said[name].is_array() ? said[name] : json::array({said[name]});
        using Element = std::remove_const_t<std::remove_pointer_t<Field>>;
        int32_t of = name == "weights" ? weights_dtype : dtype;
        if constexpr (std::is_void_v<Element>)
            fields(s, [&](const std::string &each, auto &number) {
                if (each == name + "_dtype") of = static_cast<int32_t>(number);
            });
        else
            of = kDtypeOf<Element>;
        field = static_cast<Field>(keep(Elements(list, of), said.get<size_t>(name + "_start")));
        set(s, name + "_size", list.size());
        set(s, "count", list.size());
    }
}

template <class T>
void Replay::fill(T &s, const Said &said) {
    preset(s, said);
    fields(s, [&](const std::string &name, auto &field) {
        if (said.has(name)) field = number_of<std::remove_reference_t<decltype(field)>>(said[name]);
        if (name == "dtype") dtype = static_cast<int32_t>(field);
        if (name == "weights_dtype" && field != 0) weights_dtype = static_cast<int32_t>(field);
    });
    others(s, [&](const char *name, auto &field) {
        if constexpr (!std::is_same_v<decltype(field), routecap_routing *&> &&
                      !std::is_same_v<decltype(field), const char *&>)
            point(s, name, field, said);
    });
    said.has("size"), said.has("tail");
    settle(s, said);
}

template <class T>
class Given {
public:
    Given(Replay &r, const char *key)
        : r_(r), struct_(r.in()[key]), null_(!r.in().has(key) || r.null(key)) {
        if (r.in().has(key)) r.fill(*struct_, Said(r.in()[key]));
    }
    operator const T *() { return null_ ? nullptr : struct_.get(); }
    void after(bool delivered) {
        if constexpr (std::is_same_v<T, routecap_logits>) {
            if (struct_->weights == nullptr) return;
            const size_t count = r_.out()["weights"].size();
            for (size_t i = 0; i < count && delivered; i++) {
                const json &expected = r_.out()["weights"][i];
                const double is = struct_->weights[i];
                if (std::abs(expected.get<double>() - is) > r_.out().get<double>("tolerance"))
                    expect(expected, is, "weights " + std::to_string(i));
            }
        }
    }

private:
    Replay &r_;
    Struct<T> struct_;
    bool null_;
};

// ---- Structs that the library fills

template <class T>
class Filled {
public:
    Filled(Replay &r, const char *key)
        : r_(r), key_(key), struct_(r.in()[key]), null_(r.null(key)) {
        if constexpr (std::is_same_v<T, routecap_coverage>) r.elements = &struct_->blocks;
    }
    operator T *() { return null_ ? nullptr : struct_.get(); }
    size_t size() const { return r_.in().get<size_t>("struct_size", sizeof(T)); }
    void after(bool delivered) {
        if (!delivered) return;
        struct_.expect_filled();
        if constexpr (std::is_same_v<T, routecap_backend>) {
            EXPECT_TRUE(struct_->struct_size < sizeof(T) || std::strlen(struct_->detail) > 0);
        }
        if (!r_.out().has(key_)) return;
        const json &expected = r_.out()[key_];
        if constexpr (std::is_same_v<T, routecap_view>) {
            r_.expect_view(*struct_, expected);
        } else {
            expect_fields(*struct_, expected, [&](const std::string &key, const json &value) {
                bool known = false;
                others(*struct_, [&](const std::string &name, auto &field) {
                    if constexpr (std::is_pointer_v<std::remove_reference_t<decltype(field)>>)
                        if (name == key) known = true, r_.expect_pointer(value, field, key);
                });
                EXPECT_TRUE(known) << "not known: " << key;
            });
        }
    }

private:
    Replay &r_;
    const char *key_;
    Struct<T> struct_;
    bool null_;
};

// ---- Structs beside one another, given, filled or both

template <class T>
class Structs {
public:
    Structs(Replay &r, const char *key, const char *size, const char *count)
        : r_(r),
          key_(key),
          given_(r.in().has(key)),
          null_(r.null(key)),
          whole_(std::string(count) == "count"),
          array_(std::vector<T>(given_ ? r.in()[key].size() : r.in().get<size_t>(count)),
                 r.in().get<size_t>(size, sizeof(T))),
          count_(given_ ? r.in()[key].size() : r.in().get<size_t>(count)) {
        for (size_t i = 0; i < count_ && given_; i++) {
            T one{};
            if constexpr (requires { one.status; }) one.status = kUntouched;
            r.fill(one, Said(r.in()[key][i]));
            array_.set(i, one);
        }
        std::string tail(size);
        tail.replace(tail.find("_size"), std::string::npos, "_tail");
        array_.spoil(r.in().get<uint8_t>(tail), count_);
    }
    T *data() { return null_ || (count_ == 0 && !whole_) ? nullptr : array_.data(); }
    size_t size() const { return array_.size(); }
    size_t count() const { return count_; }
    void after(bool delivered) {
        if (!delivered) return;
        if (!given_ && r_.out().has(key_))
            expect_each(array_, r_.out()[key_],
                        whole_ ? count_ : std::min<size_t>(count_, *r_.elements));
        if (!given_) return;
        if constexpr (requires(T t) { t.status; })
            if (r_.out().has("status")) {
                json names = json::array();
                for (size_t i = 0; i < count_; i++)
                    names.push_back(routecap_status_name(array_.at(i).status));
                expect(r_.out()["status"], names, "status");
            }
        if constexpr (requires(T t) { t.routing; })
            for (size_t i = 0; i < count_; i++) {
                const json &name = r_.out()["routings"][i];
                routecap_routing *routing = array_.at(i).routing;
                EXPECT_EQ(name.is_null(), routing == nullptr) << i;
                if (routing != nullptr) r_.bind(name, routing);
            }
        if constexpr (std::is_same_v<T, routecap_adopt_item>)
            expect_each(array_, r_.out()["adoptions"], count_);
    }

private:
    Replay &r_;
    const char *key_;
    bool given_, null_, whole_;
    Array<T> array_;
    size_t count_;
};

// ---- Arrays and bytes that are given

template <class T>
class Numbers {
public:
    Numbers(Replay &r, const char *key) : null_(!r.in().has(key) || r.null(key)) {
        if (r.in().has(key))
            for (const json &each : r.in()[key]) values_.push_back(r.number_of<T>(each));
        count_ = r.in().has(key) ? values_.size() : r.in().get<size_t>("count");
    }
    const T *data() const { return null_ ? nullptr : values_.data(); }
    size_t count() const { return count_; }
    void after(bool) {}

private:
    bool null_;
    std::vector<T> values_;
    size_t count_;
};

template <class T>
class Objects {
public:
    Objects(Replay &r, const char *key) : null_(r.null(key)) {
        for (const json &name : r.in()[key])
            values_.push_back(r.named<T>().at(name.get<std::string>()));
    }
    const T *const *data() const { return null_ ? nullptr : values_.data(); }
    size_t count() const { return values_.size(); }
    void after(bool) {}

private:
    bool null_;
    std::vector<const T *> values_;
};

class Bytes {
public:
    Bytes(Replay &r, const char *key)
        : data_(r.keep_bytes(r.in()[key], count_)), null_(r.null(key)) {}
    const uint8_t *data() const { return null_ ? nullptr : data_; }
    size_t count() const { return count_; }
    void after(bool) {}

protected:
    size_t count_ = 0;
    const uint8_t *data_;
    bool null_;
};

class Keys : public Bytes {  // of the store that the call names
public:
    Keys(Replay &r, const char *key) : Bytes(r, key) { count_ /= r.key_bytes(); }
};

// ---- What a call writes

template <class T>
class Made {  // a handle
public:
    Made(Replay &r, const char *key) : r_(r), key_(key), null_(r.null(key)) {}
    operator auto *() { return null_ ? nullptr : &handle_; }
    void after(bool delivered) {
        if (!null_) r_.made(delivered, key_, handle_);
    }

private:
    using Handle = std::conditional_t<std::is_integral_v<T>, T, T *>;
    static Handle untouched() {
        if constexpr (std::is_integral_v<T>)
            return kUntouched;
        else
            return reinterpret_cast<T *>(kUntouched);
    }
    Replay &r_;
    const char *key_;
    bool null_;
    Handle handle_ = untouched();
};

template <class T>
class AllMade {
public:
    AllMade(Replay &r, const char *key, size_t length)
        : r_(r), key_(key), null_(r.null(key)), handles_(length, kUntouched) {}
    T *data() { return null_ ? nullptr : handles_.data(); }
    size_t count() const { return handles_.size(); }
    void after(bool delivered) {
        EXPECT_TRUE(!delivered || handles_.size() == r_.out()[key_].size()) << key_;
        for (size_t i = 0; i < handles_.size() && delivered; i++)
            r_.bind(r_.out()[key_][i], handles_[i]);
        EXPECT_TRUE(delivered || null_ || handles_ == std::vector<T>(count(), T{})) << key_;
    }

private:
    Replay &r_;
    const char *key_;
    bool null_;
    std::vector<T> handles_;
};

template <class T>
class Out {  // one number
public:
    Out(Replay &r, const char *key) : r_(r), key_(key), null_(r.succeeds() && !r.out().has(key)) {
        if (null_) return;
        if (std::string(key) == "needed") r.needed = &value_;
        if (std::string(key) == "count") r.elements = &value_;
    }
    operator T *() { return null_ ? nullptr : &value_; }
    void after(bool) {
        if (r_.out().has(key_)) expect_value(r_.out()[key_], value_, key_);
    }

private:
    Replay &r_;
    const char *key_;
    bool null_;
    T value_ = kUntouched;
};

template <class T>
class Written {
public:
    Written(Replay &r, const char *key, size_t length)
        : r_(r), key_(key), null_(r.null(key)), values_(length, kDtypeOf<T>) {}
    T *data() { return null_ ? nullptr : values_.template data<T>(); }
    size_t count() const { return values_.count(); }
    void after(bool delivered) {
        EXPECT_TRUE(delivered || values_.untouched()) << key_;
        if (!delivered || !r_.out().has(key_)) return;
        const size_t all =
            r_.in().has("capacity") ? std::min<size_t>(count(), *r_.elements) : count();
        expect(r_.out()[key_], written(std::vector<T>(data(), data() + all)), key_);
    }

protected:
    Replay &r_;
    const char *key_;
    bool null_;
    Elements values_;
};

class Statuses : public Written<int32_t> {
public:
    Statuses(Replay &r, const char *key, size_t length) : Written(r, key, length) {
        null_ = r.succeeds() && !r.out().has(key);
    }
    void after(bool delivered) {
        EXPECT_TRUE(delivered || values_.untouched()) << key_;
        if (!delivered || null_ || !r_.out().has(key_)) return;
        json names = json::array();
        for (size_t i = 0; i < count(); i++) names.push_back(routecap_status_name(data()[i]));
        expect(r_.out()[key_], names, key_);
    }
};

// Elements of the dtype that the options of a copy say, or bytes in hexadecimal digits. Of a size
// that the vector gives, or that it expects.
class Buffer {
public:
    Buffer(Replay &r, const char *key, const char *bytes, bool of_bytes)
        : r_(r),
          key_(key),
          copies_(r.in().has("options")),
          bytes_(r.in().has(bytes) ? r.in().get<size_t>(bytes) : expected()),
          elements_(count(of_bytes ? ROUTECAP_DTYPE_U8 : r.dtype),
                    of_bytes ? ROUTECAP_DTYPE_U8 : r.dtype),
          null_(bytes_ == 0 && !(copies_ && r.in().has(bytes))) {}
    void *data() { return null_ ? nullptr : elements_.data(); }
    uint8_t *bytes() { return static_cast<uint8_t *>(data()); }
    size_t count() const { return bytes_; }
    void after(bool delivered) {
        EXPECT_TRUE(delivered || elements_.untouched()) << key_;
        if (!delivered || !r_.out().has(key_)) return;
        const json &wanted = r_.out()[key_];
        if (copies_) {
            ASSERT_EQ(wanted.size(), elements_.count()) << key_;
            for (size_t i = 0; i < wanted.size(); i++) {
                const std::string what = std::string(key_) + " " + std::to_string(i);
                const json is = elements_.at(i);
                if (is.is_number_integer())
                    expect_value(wanted[i], is.get<int64_t>(), what);
                else
                    expect(wanted[i], is, what);
            }
            return;
        }
        const size_t all = r_.needed != nullptr ? *r_.needed : bytes_;
        const auto *from = elements_.data<uint8_t>();
        expect(wanted, written_bytes({from, from + all}), key_);
        for (size_t i = all; i < bytes_; i++) EXPECT_EQ(kUntouched, elements_.at(i).get<int>());
    }

private:
    size_t count(int32_t dtype) const {
        return (bytes_ + element_size(dtype) - 1) / element_size(dtype);
    }
    size_t expected() const {
        if (copies_ || !r_.succeeds()) return 0;
        const size_t said = vectors::bytes(r_.out()[key_]).size();
        const size_t least = takes_answers && r_.out().has("needed") ? 1 << 20 : 0;
        return std::max({said, r_.out().get<size_t>("needed"), least});
    }
    Replay &r_;
    const char *key_;
    bool copies_;
    size_t bytes_;
    Elements elements_;
    bool null_;
};

}  // namespace vectors
