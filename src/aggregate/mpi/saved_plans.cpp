#include "aggregate/mpi/saved_plans.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "aggregate/mpi/text_file.hpp"

namespace twinrun::aggregation {

namespace {

constexpr const char* kPlansFormat = "twinrun aggregation plans";
constexpr const char* kPlansFile = "a file of saved plans";
constexpr int kVersion = 1;
constexpr std::uint64_t kLargestPlans = std::uint64_t{1} << 28;  // bytes of the file
constexpr std::size_t kMost = 64;                                // elections in it

struct Saved {
    std::uint64_t key = 0;
    std::vector<std::uint32_t> aggregators;
};

// nullopt: the text is not what twinrun writes.
std::optional<std::vector<Saved>> plans_in(const nlohmann::json& plans) {
    if (!plans.is_array()) return std::nullopt;
    std::vector<Saved> all;
    for (const nlohmann::json& entry : plans) {
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned() || !entry[1].is_array())
            return std::nullopt;
        Saved saved{entry[0].get<std::uint64_t>(), {}};
        for (const nlohmann::json& rank : entry[1]) {
            if (!rank.is_number_unsigned() || rank.get<std::uint64_t>() > INT32_MAX) return std::nullopt;
            saved.aggregators.push_back(rank.get<std::uint32_t>());
        }
        all.push_back(std::move(saved));
    }
    return all;
}

Result<std::vector<Saved>> plans_of(const std::string& path) {
    TWR_TRY(const std::optional<std::string> text, text_of_file(path, kLargestPlans, kPlansFile));
    if (!text) return std::vector<Saved>();
    const nlohmann::json document = nlohmann::json::parse(*text, nullptr, false);
    if (!document.is_object() || document.value("format", nlohmann::json()) != kPlansFormat)
        return not_ours(path, "other bytes", kPlansFile);
    const nlohmann::json version = document.value("version", nlohmann::json());
    if (version != kVersion) {
        return Error{ErrorCode::unsupported, path + ": version " + version.dump() +
                                                 ", and this twinrun reads 1: a newer twinrun wrote it"};
    }
    auto plans = plans_in(document.value("plans", nlohmann::json()));
    if (!plans) {
        return Error{ErrorCode::damaged,
                     path + ": is cut or altered: remove it, and aggregators are elected again"};
    }
    return std::move(*plans);
}

}  // namespace

Result<std::optional<std::vector<std::uint32_t>>> saved_plan(const std::string& path, std::uint64_t key) {
    TWR_TRY(std::vector<Saved> plans, plans_of(path));
    for (Saved& saved : plans) {
        if (saved.key == key) return std::optional(std::move(saved.aggregators));
    }
    return std::optional<std::vector<std::uint32_t>>();
}

Result<> save_plan(const std::string& path, std::uint64_t key, std::span<const std::uint32_t> aggregators) {
    TWR_TRY(std::vector<Saved> plans, plans_of(path));
    std::erase_if(plans, [&](const Saved& saved) { return saved.key == key; });
    if (plans.size() >= kMost) plans.erase(plans.begin(), plans.end() - (kMost - 1));
    plans.push_back({key, {aggregators.begin(), aggregators.end()}});
    nlohmann::json list = nlohmann::json::array();
    for (const Saved& saved : plans)
        list.push_back({saved.key, saved.aggregators});
    const nlohmann::json document = {
        {"format", kPlansFormat}, {"version", kVersion}, {"plans", std::move(list)}};
    return put_text_file(path, document.dump() + "\n", true, false);
}

}  // namespace twinrun::aggregation
