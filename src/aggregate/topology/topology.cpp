#include "aggregate/topology/topology.hpp"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "aggregate/topology/description.hpp"
#include "aggregate/topology/hwloc.hpp"
#include "aggregate/topology/models.hpp"
#include "aggregate/topology/topology_file.hpp"

namespace twinrun {

namespace {

constexpr const char* kForms =
    "flat:NODES, torus:AxBxC, dragonfly:GROUPSxROUTERSxNODES, fattree:RADIX,LEVELS, fattree:AxBxC, "
    "file:PATH or hwloc";

std::vector<std::string_view> split(std::string_view text, char mark) {
    std::vector<std::string_view> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(mark, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::optional<std::uint32_t> number(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > kMostNodes)
        return std::nullopt;
    return value;
}

// Reads "4x4x2". Empty if the text is not a shape, or has more than kMostNodes nodes.
std::vector<std::uint32_t> shape_of(std::string_view text) {
    std::vector<std::uint32_t> shape;
    std::uint64_t nodes = 1;
    if (text.size() > 200) return {};
    for (const std::string_view part : split(text, 'x')) {
        const auto width = number(part);
        if (!width) return {};
        nodes *= *width;
        if (nodes > kMostNodes) return {};
        shape.push_back(*width);
    }
    return shape;
}

// A description in parts: "KIND:WORD,NAME=VALUE".
struct Model {
    const std::string& description;
    std::string_view kind;
    std::vector<std::string_view> words;  // without a name
    ModelSettings settings;
};

Error too_large(const Model& model, const char* form) {
    return wrong_description(model.description, std::string("write ") + form + ", whole numbers from 1, " +
                                                    std::to_string(kMostNodes) + " nodes at most");
}

// Takes "name=value".
Result<> set(Model& model, std::string_view part, std::size_t equals) {
    const std::string_view name = part.substr(0, equals);
    const std::string_view value = part.substr(equals + 1);
    ModelSettings& settings = model.settings;
    bool good = false;
    const auto take = [&good](auto& to, auto from) {
        good = from.has_value();
        to = from;
    };
    if (name == "latency") {
        take(settings.latency, rate(value, true));
    } else if (name == "bandwidth") {
        take(settings.bandwidth, rate(value, false));
    } else if (name == "memory") {
        take(settings.memory, rate(value, false));
    } else if (name == "gateway_bandwidth") {
        take(settings.gateway_bandwidth, rate(value, false));
    } else if (name == "gateways" && (model.kind == "dragonfly" || model.kind == "fattree")) {
        take(settings.gateways, number(value));
    } else if (name == "pset" && model.kind == "torus") {
        take(settings.pset, number(value));
    } else {
        return wrong_description(model.description,
                                 std::string(model.kind) + " has no setting '" + std::string(name) + "'");
    }
    if (!good) return wrong_description(model.description, "'" + std::string(part) + "' has no valid number");
    return success();
}

Result<std::shared_ptr<const Topology>> flat(const Model& model, std::uint32_t nodes) {
    const auto& words = model.words;
    if (words.empty() && nodes == 0)
        return wrong_description(model.description, "how many nodes? Write flat:NODES");
    const auto count = words.empty() ? std::optional(nodes) : number(words[0]);
    if (words.size() > 1 || !count || *count > kMostNodes) return too_large(model, "flat:NODES");
    return make_flat(*count, model.settings);
}

Result<std::shared_ptr<const Topology>> fat_tree(const Model& model, std::vector<std::uint32_t> shape) {
    constexpr const char* kForm = "fattree:RADIX,LEVELS (RADIX even) or fattree:AxBxC";
    if (model.words.size() == 2 && shape.size() == 1) {
        const std::uint32_t radix = shape[0];
        const auto levels = number(model.words[1]);
        if (radix % 2 != 0 || !levels || *levels > 22) return too_large(model, kForm);
        shape.assign(*levels, radix / 2);
        shape.back() = radix;
        std::uint64_t count = 1;
        for (const std::uint32_t width : shape) {
            count *= width;
            if (count > kMostNodes) return too_large(model, kForm);
        }
    } else if (model.words.size() != 1 || shape.empty()) {
        return too_large(model, kForm);
    }
    std::string name = "fat tree ";
    std::uint32_t count = 1;
    for (std::size_t k = 0; k < shape.size(); ++k) {
        name += (k == 0 ? "" : "x") + std::to_string(shape[k]);
        count *= shape[k];
    }
    if (model.settings.gateways && *model.settings.gateways > count)
        return wrong_description(model.description, "more gateways than nodes");
    auto made = make_fat_tree(shape, name, model.settings);
    if (!made) return wrong_description(model.description, made.error().message);
    return made;
}

}  // namespace

Result<std::shared_ptr<const Topology>> make_topology(const std::string& description, std::uint32_t nodes) {
    if (description.starts_with("file:")) {
        TWR_TRY(NamedTopology named, read_topology_file(description.substr(5)));
        return std::move(named.topology);
    }
    if (is_hwloc(description)) return make_hwloc(description);
    const std::string_view text = description;
    const std::size_t colon = std::min(text.find(':'), text.size());
    Model model{description, text.substr(0, colon), {}, {}};
    const std::string_view kind = model.kind;
    const bool known = kind == "flat" || kind == "torus" || kind == "dragonfly" || kind == "fattree";
    if (!known) return wrong_description(description, std::string("write ") + kForms);
    if (colon < text.size()) {
        for (const std::string_view part : split(text.substr(colon + 1), ',')) {
            const std::size_t equals = part.find('=');
            if (equals == std::string_view::npos) {
                model.words.push_back(part);
            } else {
                TWR_CHECK(set(model, part, equals));
            }
        }
    }
    if (kind == "flat") return flat(model, nodes);
    if (model.words.empty()) return wrong_description(description, std::string("write ") + kForms);
    std::vector<std::uint32_t> shape = shape_of(model.words[0]);
    if (kind == "fattree") return fat_tree(model, std::move(shape));
    if (model.words.size() > 1) return wrong_description(description, std::string("write ") + kForms);
    if (kind == "torus") {
        if (shape.empty() || shape.size() > 8) return too_large(model, "torus:AxBxC with up to 8 dimensions");
        return make_torus(shape, model.settings);
    }
    if (shape.size() != 3) return too_large(model, "dragonfly:GROUPSxROUTERSxNODES");
    if (model.settings.gateways && *model.settings.gateways > shape[0] * shape[1] * shape[2])
        return wrong_description(description, "more gateways than nodes");
    return make_dragonfly(shape[0], shape[1], shape[2], model.settings);
}

}  // namespace twinrun
