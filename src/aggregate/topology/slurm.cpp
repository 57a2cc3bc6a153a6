#include "aggregate/topology/slurm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "aggregate/topology/defaults.hpp"
#include "aggregate/topology/description.hpp"
#include "aggregate/topology/tree.hpp"

extern char** environ;

namespace twinrun {

namespace {

constexpr std::size_t kLongestName = 256;
constexpr std::size_t kMostText = std::size_t{64}
                                  << 20;  // of scontrol's output, and of all names of a hostlist
// Slurm knows no bandwidths and latencies.
using topology_defaults::kLink;
using topology_defaults::kMemory;
using topology_defaults::kSwitch;

// Not named `quoted`: std::quoted would be a candidate if <iomanip> is included.
std::string in_quotes(std::string_view text) {
    std::string out = "'";
    for (const char c : text.substr(0, 80))
        out += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
    return out + (text.size() > 80 ? "...'" : "'");
}

// Digits only; at most 9 of them, as in Slurm's own lists.
bool digits(std::string_view text, std::uint32_t& value) {
    if (text.empty() || text.size() > 9) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

// The part of a list from `begin` to the next comma outside of brackets.
std::string_view item_at(std::string_view list, std::size_t begin) {
    bool inside = false;
    std::size_t end = begin;
    for (; end < list.size(); ++end) {
        if (list[end] == '[') inside = true;
        if (list[end] == ']') inside = false;
        if (list[end] == ',' && !inside) break;
    }
    return list.substr(begin, end - begin);
}

// The limits of a list count the names of all its brackets together.
struct Names {
    std::size_t most = 0;
    std::size_t characters = 0;
    std::vector<std::string> all;
    bool add(std::string name) {
        characters += name.size();
        if (all.size() >= most || name.size() > kLongestName || characters > kMostText) return false;
        all.push_back(std::move(name));
        return true;
    }
};

// Heads, each followed by each number of "0-3,07-11".
Result<> expand_bracket(const std::vector<std::string>& heads, std::string_view ranges, Names& out) {
    for (const std::string& head : heads) {
        for (std::size_t begin = 0; begin <= ranges.size();) {
            const std::size_t end = std::min(ranges.find(',', begin), ranges.size());
            const std::string_view range = ranges.substr(begin, end - begin);
            begin = end + 1;
            const std::size_t dash = std::min(range.find('-'), range.size());
            const std::string_view low = range.substr(0, dash);
            const std::string_view high = dash < range.size() ? range.substr(dash + 1) : low;
            std::uint32_t first = 0;
            std::uint32_t last = 0;
            if (!digits(low, first) || !digits(high, last) || last < first)
                return wrong(in_quotes(range) + " is not a range of numbers");
            for (std::uint32_t k = first; k <= last; ++k) {
                std::string number = std::to_string(k);
                if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
                if (!out.add(head + number)) return wrong("too many names, or too long ones");
            }
        }
    }
    return success();
}

Result<std::vector<std::string>> expand_item(std::string_view item, std::size_t most) {
    std::vector<std::string> heads{""};
    std::size_t at = 0;
    while (at < item.size()) {
        const std::size_t open = std::min(item.find('[', at), item.size());
        const std::string_view plain = item.substr(at, open - at);
        if (plain.find(']') != std::string_view::npos) return wrong(in_quotes(item) + ": a ']' without '['");
        for (const char c : plain) {
            if (std::isgraph(static_cast<unsigned char>(c)) == 0)
                return wrong(in_quotes(item) + " is not a name");
        }
        for (std::string& head : heads) {
            head += plain;
            if (head.size() > kLongestName) return wrong("a name of more than 256 characters");
        }
        if (open == item.size()) break;
        const std::size_t close = item.find(']', open);
        if (close == std::string_view::npos) return wrong(in_quotes(item) + ": a '[' without ']'");
        Names next{.most = most};
        TWR_CHECK(expand_bracket(heads, item.substr(open + 1, close - open - 1), next));
        heads = std::move(next.all);
        at = close + 1;
    }
    return heads;
}

// Nodes and switches by name, numbered in the order of their first mention.
class Builder {
   public:
    std::uint32_t switch_of(const std::string& name) {
        const auto [at, added] =
            switches_.try_emplace(name, static_cast<std::uint32_t>(plan.switches.size()));
        if (added) plan.switches.push_back({TreePlan::kNone, kLink});
        return at->second;
    }
    // False if it is below another switch already.
    bool node(const std::string& name, std::uint32_t leaf) {
        const auto [at, added] = nodes_.try_emplace(name, static_cast<std::uint32_t>(names.size()));
        if (!added) return plan.nodes[at->second].leaf == leaf;
        names.push_back(name);
        plan.nodes.push_back({leaf, kLink});
        return true;
    }
    [[nodiscard]] const std::uint32_t* find_node(const std::string& name) const {
        const auto at = nodes_.find(name);
        return at == nodes_.end() ? nullptr : &at->second;
    }
    Result<NamedTopology> done(const std::string& kind) {
        plan.name = "Slurm " + kind + ", " + std::to_string(plan.nodes.size()) + " nodes";
        plan.latency = kSwitch;
        plan.memory = kMemory;
        plan.gateways.push_back({TreePlan::kNone, kLink, std::numeric_limits<float>::max()});
        TWR_TRY(auto made, make_tree(std::move(plan)));
        return NamedTopology{std::move(made), std::move(names)};
    }
    TreePlan plan;
    std::vector<std::string> names;

   private:
    std::unordered_map<std::string, std::uint32_t> switches_;
    std::unordered_map<std::string, std::uint32_t> nodes_;
};

struct Line {
    std::string_view name;    // SwitchName or BlockName
    std::string_view joined;  // AggregatedBlock
    std::string_view nodes;
    std::string_view switches;
};

Line words_of(std::string_view line) {
    Line found;
    std::size_t at = 0;
    while (at < line.size()) {
        if (std::isspace(static_cast<unsigned char>(line[at])) != 0) {
            ++at;
            continue;
        }
        std::size_t end = at;
        while (end < line.size() && std::isspace(static_cast<unsigned char>(line[end])) == 0)
            ++end;
        const std::string_view word = line.substr(at, end - at);
        at = end;
        const std::size_t equals = word.find('=');
        if (equals == std::string_view::npos) continue;
        const std::string_view key = word.substr(0, equals);
        const std::string_view value = word.substr(equals + 1);
        if (key == "SwitchName" || key == "BlockName") found.name = value;
        if (key == "AggregatedBlock") found.joined = value;
        if (key == "Nodes" && value != "(null)") found.nodes = value;
        if (key == "Switches" && value != "(null)") found.switches = value;
    }
    return found;
}

std::vector<std::string> parts_of(std::string_view text, std::size_t most) {
    std::vector<std::string> parts;
    while (parts.size() + 1 < most && text.find('.') != std::string_view::npos) {
        const std::size_t dot = text.find('.');
        parts.emplace_back(text.substr(0, dot));
        text.remove_prefix(dot + 1);
    }
    parts.emplace_back(text);
    return parts;
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view list, std::size_t most) {
    Names names{.most = most};
    if (list.ends_with(',')) return wrong(in_quotes(list) + ": an empty name");
    for (std::size_t begin = 0; begin < list.size();) {
        const std::string_view item = item_at(list, begin);
        begin += item.size() + 1;
        if (item.empty()) return wrong(in_quotes(list) + ": an empty name");
        TWR_TRY(std::vector<std::string> some, expand_item(item, most));
        for (std::string& name : some) {
            if (!names.add(std::move(name))) return wrong("too many names, or too long ones");
        }
    }
    return std::move(names.all);
}

Result<NamedTopology> parse_scontrol_topology(std::string_view text) {
    if (text.size() > kMostText) return wrong("Slurm's topology: more than 64 MiB of text");
    Builder builder;
    struct Joined {
        std::string name;
        std::vector<std::string> nodes;
    };
    std::vector<Joined> joined;
    std::size_t expanded = 0;  // names in all lines
    bool blocks = false;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = text.substr(begin, end - begin);
        begin = end + 1;
        const Line words = words_of(line);
        if (words.name.empty() && words.joined.empty()) continue;
        if (words.name.size() > kLongestName || words.joined.size() > kLongestName)
            return wrong("Slurm's topology: a name of more than 256 characters");
        const auto expand = [&expanded](std::string_view list) -> Result<std::vector<std::string>> {
            TWR_TRY(auto names, expand_hostlist(list, kMostNodes));
            expanded += names.size();
            if (expanded > std::size_t{4} * kMostNodes) return wrong("too many names");
            return names;
        };
        const auto told = [](Result<std::vector<std::string>> names) -> Result<std::vector<std::string>> {
            if (!names) return std::move(names).error().at("Slurm's topology");
            return names;
        };
        TWR_TRY(std::vector<std::string> nodes, told(expand(words.nodes)));
        if (!words.joined.empty()) {
            joined.push_back({std::string(words.joined), std::move(nodes)});
            continue;
        }
        blocks = blocks || line.find("BlockName=") != std::string_view::npos;
        const std::uint32_t self = builder.switch_of(std::string(words.name));
        if (words.switches.empty()) {  // a leaf switch; the switches above name its nodes again
            for (const std::string& name : nodes) {
                if (!builder.node(name, self) && blocks)
                    return wrong("Slurm's topology: node " + in_quotes(name) + " is in two blocks");
            }
            continue;
        }
        TWR_TRY(const std::vector<std::string> below, told(expand(words.switches)));
        for (const std::string& name : below) {
            const std::uint32_t child = builder.switch_of(name);
            if (child == self)
                return wrong("Slurm's topology: switch " + in_quotes(name) + " is below itself");
            if (builder.plan.switches[child].parent == TreePlan::kNone)
                builder.plan.switches[child].parent = self;
        }
    }
    // Aggregated blocks, smaller ones first: each takes the blocks that have none above them so
    // far.
    std::stable_sort(joined.begin(), joined.end(),
                     [](const Joined& a, const Joined& b) { return a.nodes.size() < b.nodes.size(); });
    for (const Joined& group : joined) {
        const std::uint32_t self = builder.switch_of("\n" + group.name);
        for (const std::string& name : group.nodes) {
            const std::uint32_t* node = builder.find_node(name);
            if (node == nullptr) continue;
            std::uint32_t at = builder.plan.nodes[*node].leaf;
            std::size_t climbed = 0;
            while (at != self && builder.plan.switches[at].parent != TreePlan::kNone) {
                at = builder.plan.switches[at].parent;
                if (++climbed > 64)
                    return wrong("Slurm's topology: blocks in a circle, or more than 64 levels");
            }
            if (at != self) builder.plan.switches[at].parent = self;
        }
    }
    if (builder.names.empty()) return wrong("Slurm's topology: no switch with nodes, and no block, is in it");
    auto made = builder.done(blocks ? "blocks" : "tree");
    if (!made) return std::move(made).error().at("Slurm's topology");
    return made;
}

Host this_host() {
    Host host;
    std::array<char, 257> name{};
    if (gethostname(name.data(), name.size() - 1) == 0) host.name = name.data();
    const auto variable = [](const char* of) {
        const char* value = std::getenv(of);
        return std::string(value == nullptr ? "" : value);
    };
    host.address = variable("SLURM_TOPOLOGY_ADDR");
    host.pattern = variable("SLURM_TOPOLOGY_ADDR_PATTERN");
    return host;
}

Result<NamedTopology> parse_slurm_addresses(std::span<const Host> hosts) {
    if (hosts.empty()) return wrong("no nodes");
    if (hosts.size() > kMostNodes) return wrong("too many nodes");
    Builder builder;
    for (const Host& host : hosts) {
        const auto said = [&](const std::string& what) {
            return wrong("SLURM_TOPOLOGY_ADDR of node " + in_quotes(host.name) + ": " + what);
        };
        if (host.address.empty()) return said("not set");
        if (host.address.size() > 16384 || host.pattern.size() > 16384) return said("too long");
        if (host.pattern != hosts[0].pattern)
            return said("its pattern is " + in_quotes(host.pattern) + ", not " + in_quotes(hosts[0].pattern));
        // The node's name may contain dots; the pattern tells how many parts come before it.
        const std::size_t levels =
            1 + static_cast<std::size_t>(std::count(host.pattern.begin(), host.pattern.end(), '.'));
        if (levels > 65) return said("more than 64 levels of switches");
        const std::vector<std::string> parts =
            parts_of(host.address, host.pattern.empty() ? std::string::npos : levels);
        if (parts.size() > 65) return said("more than 64 levels of switches");
        if (!host.pattern.empty() && parts.size() != levels)
            return said(in_quotes(host.address) + " is not of its pattern, " + in_quotes(host.pattern));
        // Switches are identified by their path from the top, so that names of leaf switches need
        // not be unique.
        std::uint32_t above = TreePlan::kNone;
        std::string path;
        for (std::size_t k = 0; k + 1 < parts.size(); ++k) {
            path += "." + parts[k];
            const std::uint32_t next = builder.switch_of(path);
            builder.plan.switches[next].parent = above;
            above = next;
        }
        if (above == TreePlan::kNone) above = builder.switch_of("");
        if (parts.back().empty()) return said("no name at its end");
        // By number, so that hosts of the same name (several daemons on a machine) stay separate
        // nodes.
        builder.node(std::to_string(builder.names.size()) + " " + parts.back(), above);
        builder.names.back() = parts.back();
    }
    return builder.done("addresses");
}

Result<std::string> run_scontrol() {
    constexpr std::chrono::seconds kLongest{10};
    const Error failed{ErrorCode::unsupported, "'scontrol show topology' says nothing"};
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return failed;
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::string program = "scontrol";
    std::string show = "show";
    std::string topology = "topology";
    std::array<char*, 4> arguments{program.data(), show.data(), topology.data(), nullptr};
    pid_t child = -1;
    const int spawned = posix_spawnp(&child, "scontrol", &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    std::string text;
    bool whole = false;
    if (spawned == 0) {
        const auto until = std::chrono::steady_clock::now() + kLongest;
        std::vector<char> piece(1 << 16);
        while (text.size() <= kMostText) {
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                until - std::chrono::steady_clock::now());
            pollfd waiting{ends[0], POLLIN, 0};
            const int ready = left.count() <= 0 ? 0 : poll(&waiting, 1, static_cast<int>(left.count()));
            if (ready < 0 && errno == EINTR) continue;
            if (ready <= 0) break;
            const ssize_t got = read(ends[0], piece.data(), piece.size());
            if (got < 0 && errno == EINTR) continue;
            whole = got == 0;
            if (got <= 0) break;
            text.append(piece.data(), static_cast<std::size_t>(got));
        }
        if (!whole) kill(child, SIGKILL);
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        whole = whole && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    close(ends[0]);
    if (!whole || text.empty()) return failed;
    return text;
}

}  // namespace twinrun
