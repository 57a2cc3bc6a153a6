#include "aggregate/topology/hwloc.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "aggregate/topology/description.hpp"
#include "aggregate/topology/hwloc_abi.hpp"

namespace twinrun {

namespace {

constexpr const char* kLibraryName = "libhwloc.so.15";
constexpr std::size_t kLongestText = 4096;
constexpr const char* kHwlocForms =
    "hwloc, hwloc:synthetic:DESCRIPTION or hwloc:xml:PATH, with settings behind commas";

struct Library {
    hwloc::Functions call{};
    std::string reason;  // why it could not be opened
};

const Library& library() {
    static const Library found = [] {
        Library made;
        // Tests name a library that does not exist.
        const char* const named = std::getenv("TWINRUN_HWLOC_LIBRARY");
        const char* const path = named != nullptr && *named != '\0' ? named : kLibraryName;
        void* const handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
            made.reason =
                std::string(path) + " cannot be opened: install hwloc 2 (Debian and Ubuntu: libhwloc15)";
            return made;
        }
        const auto find = [&](const char* name, auto& function) {
            const std::string symbol = std::string("hwloc_") + name;
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
                ::dlsym(handle, symbol.c_str()));
            return function != nullptr;
        };
        hwloc::Functions& f = made.call;
        const bool complete =
            find("get_api_version", f.get_api_version) && find("topology_init", f.topology_init) &&
            find("topology_load", f.topology_load) && find("topology_destroy", f.topology_destroy) &&
            find("topology_set_synthetic", f.topology_set_synthetic) &&
            find("topology_set_xml", f.topology_set_xml) && find("get_type_depth", f.get_type_depth) &&
            find("get_nbobjs_by_depth", f.get_nbobjs_by_depth) &&
            find("get_obj_by_depth", f.get_obj_by_depth) && find("get_cpubind", f.get_cpubind) &&
            find("bitmap_alloc", f.bitmap_alloc) && find("bitmap_free", f.bitmap_free) &&
            find("bitmap_iszero", f.bitmap_iszero) && find("bitmap_isincluded", f.bitmap_isincluded) &&
            find("bitmap_weight", f.bitmap_weight);
        const unsigned version = complete ? f.get_api_version() : 0;
        if (version < hwloc::kFirstVersion || version >= hwloc::kEndVersion) {
            made.reason = std::string(path) + " is no hwloc 2: its binary interface is another one";
            ::dlclose(handle);
        }
        return made;
    }();
    return found;
}

// Takes one setting; false if there is no setting of this name. good: whether the value is valid.
bool take_setting(HwlocDescription& d, std::string_view name, std::string_view value, bool& good) {
    const auto set = [&good](auto& to, auto from) {
        good = from.has_value();
        if (good) to = *from;
        return true;
    };
    if (name == "latency") return set(d.network.latency, rate(value, true));
    if (name == "bandwidth") return set(d.network.bandwidth, rate(value, false));
    if (name == "gateway_bandwidth") return set(d.network.gateway_bandwidth, rate(value, false));
    if (name == "memory") return set(d.inner.memory, rate(value, false));
    if (name == "cache") return set(d.inner.cache, rate(value, false));
    if (name == "numa") return set(d.inner.numa, rate(value, false));
    if (name == "package") return set(d.inner.package, rate(value, false));
    if (name != "hosts") return false;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), d.hosts);
    good =
        error == std::errc() && end == value.data() + value.size() && d.hosts != 0 && d.hosts <= kMostNodes;
    return true;
}

// Whether a synthetic description asks for at most kMostUnits; hwloc itself would allocate any
// number. The number of units is the product of the numbers after colons. Numbers in brackets
// describe memory and attributes, and do not count.
bool modest(std::string_view text) {
    std::uint64_t units = 1;
    int depth = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '(' || text[i] == '[') ++depth;
        if (text[i] == ')' || text[i] == ']') --depth;
        // "pack:2", and the short form "2 4 2".
        const bool counts = depth == 0 && text[i] >= '0' && text[i] <= '9' &&
                            (i == 0 || text[i - 1] == ':' || text[i - 1] == ' ');
        if (!counts) continue;
        std::uint64_t count = 0;
        const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), count);
        if (error != std::errc() || count > kMostUnits) return false;
        units *= std::max<std::uint64_t>(count, 1);
        if (units > kMostUnits) return false;
        i = static_cast<std::size_t>(end - text.data()) - 1;
    }
    return true;
}

// hwloc's topology, loaded and owned.
class Loaded {
   public:
    explicit Loaded(const hwloc::Functions& call) : call_(call) {}
    ~Loaded() {
        if (set_ != nullptr) call_.bitmap_free(set_);
        if (topology_ != nullptr) call_.topology_destroy(topology_);
    }
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;

    Result<> load(const HwlocDescription& d) {
        using Source = HwlocDescription::Source;
        const std::string what = d.source == Source::host  ? "this host"
                                 : d.source == Source::xml ? "the file '" + d.text + "'"
                                                           : "'" + d.text + "'";
        const auto fail = [&] {
            return Error{ErrorCode::invalid_argument, "hwloc makes nothing of " + what.substr(0, 300)};
        };
        set_ = call_.bitmap_alloc();
        if (set_ == nullptr || call_.topology_init(&topology_) != 0) {
            topology_ = nullptr;
            return Error{ErrorCode::out_of_memory, "hwloc: no memory for a topology"};
        }
        if (d.source == Source::synthetic && call_.topology_set_synthetic(topology_, d.text.c_str()) != 0)
            return fail();
        if (d.source == Source::xml && call_.topology_set_xml(topology_, d.text.c_str()) != 0) return fail();
        if (call_.topology_load(topology_) != 0) return fail();
        if (count(hwloc::kUnit) == 0 || count(hwloc::kUnit) > kMostUnits) {
            return Error{ErrorCode::invalid_argument, "hwloc finds " + std::to_string(count(hwloc::kUnit)) +
                                                          " processing units in " + what.substr(0, 300) +
                                                          ", and 1 to " + std::to_string(kMostUnits) +
                                                          " are possible here"};
        }
        constexpr std::array<int, InnerPlace::kLevels> kTypes{hwloc::kPackage, hwloc::kNuma, hwloc::kCache,
                                                              hwloc::kCore};
        for (std::size_t level = 0; level < kTypes.size(); ++level)
            parts_[level] = objects(kTypes[level]);
        if (parts_.back().empty()) parts_.back() = objects(hwloc::kUnit);
        return success();
    }

    [[nodiscard]] std::vector<InnerPlace> cores() const {
        std::vector<InnerPlace> all;
        for (const hwloc::Object* core : parts_.back())
            all.push_back(covering(core->cpuset));
        return all;
    }
    // Where this process is bound; anywhere if the system does not report it.
    [[nodiscard]] InnerPlace own() const {
        if (call_.get_cpubind(topology_, set_, hwloc::kBindingOfProcess) != 0 ||
            call_.bitmap_iszero(set_) != 0)
            return {};
        return covering(set_);
    }

   private:
    [[nodiscard]] unsigned count(int type) const {
        const int depth = call_.get_type_depth(topology_, type);
        if (depth == hwloc::kUnknownDepth || depth == hwloc::kMultipleDepths) return 0;
        return call_.get_nbobjs_by_depth(topology_, depth);
    }
    [[nodiscard]] std::vector<const hwloc::Object*> objects(int type) const {
        std::vector<const hwloc::Object*> all;
        const unsigned number = count(type);
        for (unsigned i = 0; i < number; ++i) {
            const hwloc::Object* const object =
                call_.get_obj_by_depth(topology_, call_.get_type_depth(topology_, type), i);
            if (object != nullptr && object->cpuset != nullptr && call_.bitmap_iszero(object->cpuset) == 0)
                all.push_back(object);
        }
        return all;
    }
    // At each level the smallest part that has all of these CPUs, if there is one.
    [[nodiscard]] InnerPlace covering(hwloc::Bitmap set) const {
        InnerPlace place;
        for (std::size_t level = 0; level < parts_.size(); ++level) {
            int least = std::numeric_limits<int>::max();
            for (const hwloc::Object* part : parts_[level]) {
                if (call_.bitmap_isincluded(set, part->cpuset) == 0) continue;
                const int weight = call_.bitmap_weight(part->cpuset);
                // Of several memories with the same CPUs the first counts.
                if (weight >= least) continue;
                least = weight;
                place.parts[level] = part->logical_index;
            }
        }
        return place;
    }
    const hwloc::Functions& call_;
    hwloc::Topology topology_ = nullptr;
    hwloc::Bitmap set_ = nullptr;
    std::array<std::vector<const hwloc::Object*>, InnerPlace::kLevels> parts_;
};

}  // namespace

bool is_hwloc(const std::string& description) {
    return description == "hwloc" || description.starts_with("hwloc:") || description.starts_with("hwloc,");
}

Result<HwlocDescription> parse_hwloc(const std::string& description) {
    if (!is_hwloc(description) || description.size() > kLongestText ||
        description.find('\0') != std::string::npos)
        return wrong_description(description, std::string("write ") + kHwlocForms);
    HwlocDescription d;
    // Settings are taken from the end, because the description itself may contain commas.
    std::string_view rest = std::string_view(description).substr(5);
    for (std::size_t comma = rest.rfind(','); comma != std::string_view::npos; comma = rest.rfind(',')) {
        const std::string_view part = rest.substr(comma + 1);
        const std::size_t equals = part.find('=');
        bool good = false;
        const bool known = equals != std::string_view::npos &&
                           take_setting(d, part.substr(0, equals), part.substr(equals + 1), good);
        if (!known && rest.starts_with(':')) break;
        if (!known) return wrong_description(description, "hwloc has no setting '" + std::string(part) + "'");
        if (!good) return wrong_description(description, "'" + std::string(part) + "' has no valid number");
        rest = rest.substr(0, comma);
    }
    if (rest.empty()) return d;
    if (rest.starts_with(":synthetic:")) {
        d.source = HwlocDescription::Source::synthetic;
        d.text = rest.substr(11);
        if (!modest(d.text))
            return wrong_description(description,
                                     "more than " + std::to_string(kMostUnits) + " processing units");
    } else if (rest.starts_with(":xml:")) {
        d.source = HwlocDescription::Source::xml;
        d.text = rest.substr(5);
    } else {
        return wrong_description(description, std::string("write ") + kHwlocForms);
    }
    if (d.text.empty()) return wrong_description(description, std::string("write ") + kHwlocForms);
    return d;
}

Result<HwlocHost> ask_hwloc(const HwlocDescription& description) {
    const Library& found = library();
    if (!found.reason.empty()) return Error{ErrorCode::unsupported, "topology hwloc: " + found.reason};
    Loaded loaded(found.call);
    TWR_CHECK(loaded.load(description));
    HwlocHost host;
    host.cores = loaded.cores();
    if (description.source == HwlocDescription::Source::host) host.own = loaded.own();
    return host;
}

Result<std::shared_ptr<const Topology>> make_hwloc(const std::string& description) {
    TWR_TRY(const HwlocDescription d, parse_hwloc(description));
    TWR_TRY(const HwlocHost host, ask_hwloc(d));
    const std::uint32_t hosts = std::max(d.hosts, 1U);
    if (std::uint64_t{hosts} * host.cores.size() > kMostNodes) {
        return wrong_description(description,
                                 "more than " + std::to_string(kMostNodes) + " cores in all hosts");
    }
    std::vector<HostPlace> places;
    for (std::uint32_t k = 0; k < hosts; ++k) {
        for (const InnerPlace& core : host.cores)
            places.push_back({k, core});
    }
    ModelSettings network = d.network;
    network.memory = d.inner.memory;
    std::string name = d.source == HwlocDescription::Source::host ? "hwloc: this host" : "hwloc: " + d.text;
    if (hosts > 1) name += ", " + std::to_string(hosts) + " hosts";
    auto made = make_places(make_flat(hosts, network), std::move(places), d.inner, std::move(name));
    if (!made) return wrong_description(description, made.error().message);
    return made;
}

Result<InnerPlace> place_of_process(const HwlocDescription& description, std::uint32_t number) {
    TWR_TRY(const HwlocHost host, ask_hwloc(description));
    if (description.source == HwlocDescription::Source::host) return host.own;
    return host.cores[number % host.cores.size()];
}

std::string place_words(const InnerPlace& place) {
    constexpr std::array<const char*, InnerPlace::kLevels> kNames{"package", "NUMA node", "L3", "core"};
    std::string words;
    for (std::size_t level = 0; level < kNames.size(); ++level) {
        if (place.parts[level] == InnerPlace::kAny) continue;
        words += (words.empty() ? "" : ", ") + std::string(kNames[level]) + " " +
                 std::to_string(place.parts[level]);
    }
    return words.empty() ? "anywhere" : words;
}

}  // namespace twinrun
