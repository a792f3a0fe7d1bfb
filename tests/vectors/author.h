// Who writes what the vectors expect: the model of tests/fuzz, in the place of the library. The
// program `author` is the replayer with author.cc, which has the functions of the headers that the
// model answers. What it cannot answer is left out, and counted.
#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <string>

namespace author {

using json = nlohmann::ordered_json;

// One vector.
class Vector {
public:
    ~Vector();
    // Whether the model answers this call of it.
    bool answers(const json &call);
    // The same of a call that says something wrong, as the vector was before.
    bool answered(json call, const json &wrong);

private:
    std::string reason(const json &call) const;  // why not; "" if it does
    std::set<std::string> unknown_;              // names that calls made which were left out
    std::string over_;                           // why nothing more of it is answered
    bool whole_ = true;
};

// Fields of structs that the model does not know: memory, and how a view is divided.
inline const std::set<std::string> kUnknown = {"bytes_in_use", "bytes_peak",     "bytes_budget",
                                               "rows_copied",  "blocks_refused", "segment_count"};
// The counts of all, in lines.
std::string summary();
// Whether no model can say what comes next.
bool lost();

}  // namespace author
