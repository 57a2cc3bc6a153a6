// SPDX-License-Identifier: Apache-2.0
#include "haccio/results.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "haccio/method.hpp"

namespace haccio {

using nlohmann::json;

namespace {

json as_json(const Spread& spread) {
    return {{"min", spread.min},   {"median", spread.median},       {"max", spread.max},
            {"mean", spread.mean}, {"deviation", spread.deviation}, {"variation", spread.variation()}};
}

double rate(double bytes, double seconds) { return seconds > 0 ? bytes / seconds : 0; }

std::string in_quotes(const std::string& text) {
    std::string result = "\"";
    for (const char c : text)
        result += c == '"' ? std::string("\"\"") : std::string(1, c);
    return result + "\"";
}

std::string number(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
    Spread spread;
    if (values.empty()) return spread;
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    spread.min = values.front();
    spread.max = values.back();
    spread.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    double sum = 0, squares = 0;
    for (const double x : values)
        sum += x;
    spread.mean = sum / static_cast<double>(n);
    for (const double x : values)
        squares += (x - spread.mean) * (x - spread.mean);
    if (n > 1) spread.deviation = std::sqrt(squares / static_cast<double>(n - 1));
    return spread;
}

Results::Results(const std::string& json_name, const std::string& csv_name)
    : json_name_(json_name), csv_name_(csv_name) {
    if (!json_name.empty() && json_name != "-") {
        json_.open(json_name, std::ios::trunc);
        if (!json_) throw Failure(json_name + ": cannot be made");
    }
    if (!csv_name.empty()) {
        csv_.open(csv_name, std::ios::trunc);
        if (!csv_) throw Failure(csv_name + ": cannot be made");
        put(csv_, csv_name_,
            "method,operation,repetition,order,begin,bytes,seconds,sync_seconds,bytes_per_second,"
            "synced_bytes_per_second,resident,verified,phases");
    }
}

void Results::put(std::ofstream& file, const std::string& name, const std::string& line) {
    file << line << '\n' << std::flush;
    if (!file) throw Failure(name + ": cannot be written");
}

void Results::line(const json& object) {
    // Names of files may be any bytes.
    const std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace);
    if (json_name_ == "-") {
        std::printf("%s\n", text.c_str());
        std::fflush(stdout);
    } else if (json_.is_open()) {
        put(json_, json_name_, text);
    }
}

void Results::add(const Measurement& m) {
    const auto bytes = static_cast<double>(m.bytes);
    json object = {
        {"kind", "repetition"},       {"method", m.method},   {"operation", m.operation},
        {"repetition", m.repetition}, {"order", m.order},     {"begin", m.begin},
        {"bytes", m.bytes},           {"seconds", m.seconds}, {"bytes_per_second", rate(bytes, m.seconds)}};
    for (const auto& [phase, seconds] : m.phases)
        object["phases"][phase] = seconds;
    std::string phases, synced, sync_seconds;
    for (const auto& [phase, seconds] : m.phases)
        phases += (phases.empty() ? "" : ";") + phase + "=" + number(seconds);
    if (m.sync_seconds) {
        object["sync_seconds"] = *m.sync_seconds;
        object["synced_bytes_per_second"] = rate(bytes, m.seconds + *m.sync_seconds);
        sync_seconds = number(*m.sync_seconds);
        synced = number(rate(bytes, m.seconds + *m.sync_seconds));
    }
    if (m.resident) object["resident"] = *m.resident;
    if (m.verified) object["verified"] = *m.verified;
    line(object);
    if (csv_.is_open()) {
        char begin[40];
        std::snprintf(begin, sizeof begin, "%.6f", m.begin);
        put(csv_, csv_name_,
            in_quotes(m.method) + "," + m.operation + "," + std::to_string(m.repetition) + "," +
                std::to_string(m.order) + "," + begin + "," + std::to_string(m.bytes) + "," +
                number(m.seconds) + "," + sync_seconds + "," + number(rate(bytes, m.seconds)) + "," + synced +
                "," + (m.resident ? number(*m.resident) : "") + "," +
                (m.verified ? (*m.verified ? "yes" : "no") : "") + "," + phases);
    }
    measurements_.push_back(m);
}

void Results::summarise(bool quiet) {
    std::vector<std::pair<std::string, std::string>> groups;
    for (const Measurement& m : measurements_) {
        std::pair<std::string, std::string> group(m.method, m.operation);
        if (std::find(groups.begin(), groups.end(), group) == groups.end())
            groups.push_back(std::move(group));
    }
    std::sort(groups.begin(), groups.end());
    std::size_t width = 6;
    for (const auto& group : groups)
        width = std::max(width, group.first.size());
    const bool table = !quiet && json_name_ != "-" && !groups.empty();
    if (table)
        std::printf("%-*s  %-9s  %10s  %10s  %10s  %6s  %10s\n", static_cast<int>(width), "method",
                    "operation", "MB/s", "least", "most", "CoV", "and fsync");
    for (const auto& [method, operation] : groups) {
        std::vector<double> rates, synced, seconds;
        json phases = json::object();
        std::vector<std::pair<std::string, std::vector<double>>> by_phase;
        for (const Measurement& m : measurements_) {
            if (m.method != method || m.operation != operation) continue;
            const auto bytes = static_cast<double>(m.bytes);
            rates.push_back(rate(bytes, m.seconds));
            seconds.push_back(m.seconds);
            if (m.sync_seconds) synced.push_back(rate(bytes, m.seconds + *m.sync_seconds));
            for (const auto& [phase, value] : m.phases) {
                auto found =
                    std::find_if(by_phase.begin(), by_phase.end(),
                                 [&, name = phase](const auto& known) { return known.first == name; });
                if (found == by_phase.end()) found = by_phase.insert(found, {phase, {}});
                found->second.push_back(value);
            }
        }
        const Spread spread = spread_of(rates);
        json object = {{"kind", "summary"},
                       {"method", method},
                       {"operation", operation},
                       {"repetitions", rates.size()},
                       {"bytes_per_second", as_json(spread)},
                       {"seconds", as_json(spread_of(seconds))}};
        if (!synced.empty()) object["synced_bytes_per_second"] = as_json(spread_of(synced));
        for (const auto& [phase, values] : by_phase)
            phases[phase] = as_json(spread_of(values));
        object["phases"] = phases;
        line(object);
        if (!table) continue;
        char with_sync[24] = "";
        if (!synced.empty())
            std::snprintf(with_sync, sizeof with_sync, "%.1f", spread_of(synced).median / 1e6);
        std::printf("%-*s  %-9s  %10.1f  %10.1f  %10.1f  %5.1f%%  %10s\n", static_cast<int>(width),
                    method.c_str(), operation.c_str(), spread.median / 1e6, spread.min / 1e6,
                    spread.max / 1e6, 100 * spread.variation(), with_sync);
    }
}

}  // namespace haccio
