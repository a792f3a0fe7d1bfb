// Measuring: repeated, interleaved, as median with a 95 % interval, printed as a table and written
// as JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

double wall_us();        // a clock
double thread_cpu_us();  // CPU time of this thread

// What repeated measurements of one thing gave.
struct Estimate {
    double median, low, high;  // low and high: 95 % interval of the median, by order statistics
};
Estimate estimate(std::vector<double> samples);

class Report {
public:
    Report(std::string title, int argc, char **argv);

    // One line of a table. `parameters` go into the JSON as they are: "\"rows\": 64".
    void add(const std::string &group, const std::string &name, const std::string &parameters,
             const std::string &unit, Estimate value, const std::string &comment = "");
    void write_json(const std::string &path) const;

private:
    struct Line {
        std::string group, name, parameters, unit;
        Estimate value;
    };
    std::string title_, command_, group_;
    std::vector<Line> lines_;
};

}  // namespace bench
