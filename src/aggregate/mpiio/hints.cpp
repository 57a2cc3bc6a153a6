#include "aggregate/mpiio/hints.hpp"

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace twinrun::mpiio {

namespace {

constexpr std::string_view kPrefix = "twinrun_";
// Settings of an aggregate that a file of MPI-IO does not have.
constexpr std::array<std::string_view, 8> kOthers{"files",    "nodes_per_file", "sync", "update",
                                                  "no_index", "offsets",        "plan", "overlap"};

Result<> set(Hints& hints, std::string_view name, std::string_view value) {
    if (name == "enable") {
        if (value != "true" && value != "false") {
            return Error{ErrorCode::invalid_argument,
                         "enable is '" + std::string(value) + "', and may be true or false"};
        }
        hints.enable = value == "true";
        return success();
    }
    for (const std::string_view other : kOthers) {
        if (name == other)
            return Error{ErrorCode::invalid_argument, std::string(name) + " has no meaning for MPI-IO"};
    }
    TWR_CHECK(hints.settings.set(name, value));
    if (name == "time_limit") hints.limited = true;
    return success();
}

Result<std::string> value_of(MPI_Info info, const char* key) {
    int there = 0;
#if MPI_VERSION >= 4
    int length = 0;
    char none = '\0';  // MPICH 4.0 takes no null pointer, also where nothing is to be put there
    MPI_Info_get_string(info, key, &length, &none, &there);
    std::string value(static_cast<std::size_t>(length) + 1, '\0');
    if (there != 0) MPI_Info_get_string(info, key, &length, value.data(), &there);
#else
    int length = 0;
    MPI_Info_get_valuelen(info, key, &length, &there);
    std::string value(static_cast<std::size_t>(length) + 1, '\0');
    if (there != 0) MPI_Info_get(info, key, length, value.data(), &there);
#endif
    value.resize(std::string_view(value.c_str()).size());
    return value;
}

}  // namespace

Result<Hints> hints_of(MPI_Info info) {
    Hints hints;
    hints.settings.update = true;
    if (const char* const given = std::getenv("TWINRUN_MPIIO_HINTS")) {
        std::string_view left(given);
        while (!left.empty()) {
            const std::string_view hint = left.substr(0, left.find(';'));
            left.remove_prefix(std::min(left.size(), hint.size() + 1));
            if (hint.empty()) continue;
            const std::size_t equals = hint.find('=');
            if (equals == std::string_view::npos) {
                return Error{ErrorCode::invalid_argument,
                             "TWINRUN_MPIIO_HINTS: '" + std::string(hint) + "' is no NAME=VALUE"};
            }
            auto done = set(hints, hint.substr(0, equals), hint.substr(equals + 1));
            if (!done) return std::move(done).error().at("TWINRUN_MPIIO_HINTS");
        }
    }
    if (info != MPI_INFO_NULL) {
        int keys = 0;
        MPI_Info_get_nkeys(info, &keys);
        for (int i = 0; i < keys; ++i) {
            std::array<char, MPI_MAX_INFO_KEY + 1> key{};
            MPI_Info_get_nthkey(info, i, key.data());
            const std::string_view name(key.data());
            if (!name.starts_with(kPrefix)) continue;
            TWR_TRY(const std::string value, value_of(info, key.data()));
            auto done = set(hints, name.substr(kPrefix.size()), value);
            if (!done) return std::move(done).error().at("hint " + std::string(name));
        }
    }
    if (hints.settings.backend == aggregation::Backend::mpiio) {
        return Error{ErrorCode::invalid_argument,
                     "hint twinrun_backend: mpiio is what this library replaces"};
    }
    if (std::getenv("TWINRUN_AGGREGATE_TIME_LIMIT") != nullptr) hints.limited = true;
    TWR_TRY(hints.settings, aggregation::complete(std::move(hints.settings)));
    return hints;
}

Striping striping_of(const Hints& hints, MPI_Info info) {
    aggregation::Settings settings;
    settings.striping = hints.settings.striping;
    if (info == MPI_INFO_NULL) return settings.striping;
    for (const char* const key : {"striping_factor", "striping_unit"}) {
        const auto value = value_of(info, key);
        if (!value || value->empty()) continue;
        const bool factor = key == std::string_view("striping_factor");
        if (factor ? settings.striping.factor != 0 : settings.striping.unit != 0) continue;
        static_cast<void>(settings.set(key, *value));
    }
    return settings.striping;
}

std::uint64_t hash_of(const Hints& hints) {
    return aggregation::hash_of(hints.settings) ^ (hints.enable ? 0x9E3779B97F4A7C15ULL : 0) ^
           (hints.limited ? 0xC2B2AE3D27D4EB4FULL : 0);
}

}  // namespace twinrun::mpiio
