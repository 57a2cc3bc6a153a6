#include "aggregate/hdf5/config.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "aggregate/plan/stripes.hpp"
#include "base/text_settings.hpp"

namespace twinrun::hdf5 {

namespace {

using V = std::string_view;
using text::assign;

constexpr std::string_view kPrefix = "twinrun_";

// What was given, to find contradictions.
struct Given {
    Config config;
    bool stripe = false;
};
using G = Given;

bool shared(G& g, V name, V value) { return static_cast<bool>(g.config.settings.set(name, value)); }

constexpr std::array kSettings{
    text::Setting<G>{"files", "a number of 1 to 256",
                     [](G& g, V v) {
                         const auto files = text::number<std::size_t>(v);
                         return files && *files >= 1 && *files <= kMostStripedFiles &&
                                assign(g.config.files, files);
                     }},
    text::Setting<G>{"stripe", "a size of 512 bytes to 1 TiB",
                     [](G& g, V v) {
                         const auto bytes = text::bytes(v);
                         g.stripe = true;
                         return bytes && *bytes >= 512 && *bytes <= kLargestStripeOfFile &&
                                assign(g.config.stripe, bytes);
                     }},
    text::Setting<G>{
        "communicator", "own or world",
        [](G& g, V v) {
            return assign(g.config.world, text::one_of<bool, 2>(v, {{{"own", false}, {"world", true}}}));
        }},
    text::Setting<G>{"overlap", "true or false",
                     [](G& g, V v) { return assign(g.config.overlap, text::truth(v)); }},
    text::Setting<G>{"time_limit", "seconds; negative: no limit; 0: what the environment says",
                     [](G& g, V v) {
                         g.config.limited = true;
                         return shared(g, "time_limit", v);
                     }},
    text::Setting<G>{"aggregators", "a number; 0: chosen",
                     [](G& g, V v) { return shared(g, "aggregators", v); }},
    text::Setting<G>{"placement", "cost, rank, bridge, random or worst",
                     [](G& g, V v) { return shared(g, "placement", v); }},
    text::Setting<G>{"topology", "a description, as in docs/reference/aggregate.md",
                     [](G& g, V v) { return shared(g, "topology", v); }},
    text::Setting<G>{"buffers", "2 to 256", [](G& g, V v) { return shared(g, "buffers", v); }},
    text::Setting<G>{"buffer_bytes", "a size of at most 2^48; 0: chosen",
                     [](G& g, V v) { return shared(g, "buffer_bytes", v); }},
    text::Setting<G>{"block_bytes", "a size of at most 2^48; 0: what the file system says",
                     [](G& g, V v) { return shared(g, "block_bytes", v); }},
    text::Setting<G>{"seed", "a number", [](G& g, V v) { return shared(g, "seed", v); }},
};
constexpr std::span<const text::Setting<G>> kKnown(kSettings);

Result<> set_text(Given& given, std::string_view text) {
    while (!text.empty()) {
        const std::string_view raw = text.substr(0, text.find(';'));
        text.remove_prefix(std::min(text.size(), raw.size() + 1));
        const std::string_view one = text::trim(raw);
        if (one.empty()) continue;
        const std::size_t equals = one.find('=');
        if (equals == std::string_view::npos) {
            return Error{ErrorCode::invalid_argument,
                         "'" + std::string(one) + "' is not of the form name = value"};
        }
        TWR_CHECK(text::set(given, kKnown, one.substr(0, equals), one.substr(equals + 1)));
    }
    return success();
}

Result<> set_hints(Given& given, MPI_Info info) {
    int keys = 0;
    MPI_Info_get_nkeys(info, &keys);
    for (int i = 0; i < keys; ++i) {
        std::array<char, MPI_MAX_INFO_KEY + 1> key{};
        std::array<char, MPI_MAX_INFO_VAL + 1> value{};
        MPI_Info_get_nthkey(info, i, key.data());
        const std::string_view name(key.data());
        if (!name.starts_with(kPrefix)) continue;
        int there = 0;
        MPI_Info_get(info, key.data(), MPI_MAX_INFO_VAL, value.data(), &there);
        auto done = text::set(given, kKnown, name.substr(kPrefix.size()), value.data());
        if (!done) return std::move(done).error().at("hint " + std::string(name));
    }
    return success();
}

}  // namespace

Result<Config> config_of(std::string_view text, MPI_Info info) {
    Given given;
    given.config.settings.update = true;
    if (auto done = set_text(given, text); !done)
        return std::move(done).error().at("the configuration of the driver (HDF5_DRIVER_CONFIG)");
    if (info != MPI_INFO_NULL) TWR_CHECK(set_hints(given, info));
    if (given.stripe && given.config.files == 1) {
        return Error{ErrorCode::invalid_argument,
                     "settings contradict each other: stripe says how sub-files are cut, and there are none "
                     "(files = 1): set files, or leave stripe out"};
    }
    if (given.config.stripe % 512 != 0) {
        return Error{ErrorCode::invalid_argument, "setting stripe: give a multiple of 512 bytes"};
    }
    if (std::getenv("TWINRUN_AGGREGATE_TIME_LIMIT") != nullptr) given.config.limited = true;
    TWR_TRY(given.config.settings, aggregation::complete(std::move(given.config.settings)));
    return std::move(given.config);
}

std::uint64_t hash_of(const Config& config) {
    const std::uint64_t own = config.files * 0x9E3779B97F4A7C15ULL + config.stripe * 8 +
                              (config.world ? 4U : 0U) + (config.overlap ? 2U : 0U) +
                              (config.limited ? 1U : 0U);
    return aggregation::hash_of(config.settings) ^ own * 0xC2B2AE3D27D4EB4FULL;
}

}  // namespace twinrun::hdf5
