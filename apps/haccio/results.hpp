// SPDX-License-Identifier: Apache-2.0
// What was measured: lines of JSON and of CSV, written at once, and a table. On the first rank.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haccio/options.hpp"

namespace haccio {

struct Measurement {
    std::string method;
    std::string operation;  // "write" or "read"
    std::uint64_t repetition = 0, order = 0;
    double begin = 0;  // seconds since 1970
    std::uint64_t bytes = 0;
    double seconds = 0;                  // from a barrier to the last rank's end
    std::optional<double> sync_seconds;  // --sync after
    // --cold: share of the file that was in the page cache nevertheless
    std::optional<double> resident;
    std::optional<bool> verified;
    std::vector<std::pair<std::string, double>> phases;  // of each, the slowest rank's
};

// Of several values, none of them NaN; deviation with n - 1.
struct Spread {
    double min = 0, median = 0, max = 0, mean = 0, deviation = 0;
    [[nodiscard]] double variation() const { return mean > 0 ? deviation / mean : 0; }
};
Spread spread_of(std::vector<double> values);

class Results {
   public:
    // Throws Failure where a file cannot be made.
    Results(const std::string& json_name, const std::string& csv_name);

    void line(const nlohmann::json& object);
    void add(const Measurement& measurement);
    // Lines and, unless quiet, a table of all methods.
    void summarise(bool quiet);

   private:
    void put(std::ofstream& file, const std::string& name, const std::string& line);

    std::string json_name_, csv_name_;
    std::ofstream json_, csv_;
    std::vector<Measurement> measurements_;
};

}  // namespace haccio
