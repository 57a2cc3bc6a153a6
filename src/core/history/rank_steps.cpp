#include "history/rank_steps.hpp"

#include <algorithm>
#include <stdexcept>

#include "history/names.hpp"

namespace twinrun {

namespace {

// Files of other programs may have a name of their own at every step.
constexpr std::size_t kMostNames = 16;

}  // namespace

RankSteps::const_iterator& RankSteps::const_iterator::operator++() {
    const bool others = other_ != in_->others_.end();
    if (plain_ < in_->plain_.size() && (!others || in_->plain_[plain_].step < other_->first)) {
        ++plain_;
    } else {
        ++other_;
    }
    made_.reset();
    return *this;
}

std::size_t RankSteps::lower_bound(std::int64_t step) const {
    const auto at = std::lower_bound(plain_.begin(), plain_.end(), step,
                                     [](const Plain& one, std::int64_t number) { return one.step < number; });
    return static_cast<std::size_t>(at - plain_.begin());
}

RankSteps::const_iterator RankSteps::find(std::int64_t step) const {
    const const_iterator at(*this, lower_bound(step), others_.lower_bound(step));
    const bool other = at.other_ != others_.end() && at.other_->first == step;
    return other || is_plain(at.plain_, step) ? at : end();
}

RankStep RankSteps::at(std::int64_t step) const {
    const auto found = find(step);
    if (found == end()) throw std::out_of_range("no such step");
    return found->second;
}

RankSteps::value_type RankSteps::last() const {
    if (others_.empty() || (!plain_.empty() && plain_.back().step > others_.rbegin()->first))
        return {plain_.back().step, made_of(plain_.back())};
    return *others_.rbegin();
}

bool RankSteps::names_folder(const std::string& folder) const {
    if (const auto step = step_of(folder); step && has(*step, folder)) return true;
    return std::any_of(others_.begin(), others_.end(),
                       [&](const auto& other) { return other.second.folder == folder; });
}

bool RankSteps::has(std::int64_t step, const std::string& folder) const {
    if (const auto other = others_.find(step); other != others_.end()) return other->second.folder == folder;
    const std::size_t at = lower_bound(step);
    return is_plain(at, step) && step_of(folder) == step && attempt_of(folder) == plain_[at].attempt;
}

bool RankSteps::operator==(const RankSteps& o) const {
    return size() == o.size() && std::equal(begin(), end(), o.begin());
}

void RankSteps::put(std::int64_t step, const RankStep& entry) {
    const std::size_t at = lower_bound(step);
    const auto plain = plain_of(step, entry);
    if (!plain) {
        others_.insert_or_assign(step, RankStep(entry));  // copied before anything changes
        if (is_plain(at, step)) plain_.erase(plain_.begin() + static_cast<std::ptrdiff_t>(at));
        return;
    }
    if (is_plain(at, step)) {
        plain_[at] = *plain;
        return;
    }
    // By a quarter and not to twice the size, as a vector does: a long run has room for little that
    // it does not need.
    if (plain_.size() == plain_.capacity()) plain_.reserve(plain_.size() + plain_.size() / 4 + 8);
    plain_.insert(plain_.begin() + static_cast<std::ptrdiff_t>(at), *plain);
    others_.erase(step);
}

void RankSteps::erase(std::int64_t step) {
    const std::size_t at = lower_bound(step);
    if (is_plain(at, step)) plain_.erase(plain_.begin() + static_cast<std::ptrdiff_t>(at));
    others_.erase(step);
}

RankSteps::value_type RankSteps::entry(std::size_t plain, Others::const_iterator other) const {
    if (other != others_.end() && (plain == plain_.size() || other->first < plain_[plain].step))
        return *other;
    return {plain_[plain].step, made_of(plain_[plain])};
}

RankStep RankSteps::made_of(const Plain& plain) const {
    return {step_folder(plain.step, plain.attempt), files_of(plain)};
}

RankFiles RankSteps::files_of(const Plain& plain) const {
    const Names& names = names_[plain.names];
    RankFiles made;
    made.rank = names.rank;
    made.data = names.data;
    made.data_bytes = plain.data_bytes;
    made.metadata = names.metadata;
    made.metadata_bytes = plain.metadata_bytes;
    made.header_checksum = plain.header_checksum;
    made.blocked_seconds = plain.blocked_seconds;
    return made;
}

std::optional<RankSteps::Plain> RankSteps::plain_of(std::int64_t step, const RankStep& entry) {
    const RankFiles& files = entry.files;
    const std::uint32_t attempt = attempt_of(entry.folder);
    if (entry.folder != step_folder(step, attempt)) return std::nullopt;
    const auto names = names_of(files);
    if (!names) return std::nullopt;
    const Plain plain{
        step,  files.data_bytes, files.metadata_bytes, files.header_checksum, files.blocked_seconds, attempt,
        *names};
    // The one test that no member which is added to these can be missing from.
    if (files_of(plain) != files) return std::nullopt;
    return plain;
}

std::optional<std::uint32_t> RankSteps::names_of(const RankFiles& files) {
    const auto same = [&](const Names& names) {
        return names.rank == files.rank && names.data == files.data && names.metadata == files.metadata;
    };
    const auto known = std::find_if(names_.begin(), names_.end(), same);
    if (known == names_.end()) {
        if (names_.size() == kMostNames) return std::nullopt;
        names_.push_back({files.rank, files.data, files.metadata});
        return static_cast<std::uint32_t>(names_.size() - 1);
    }
    return static_cast<std::uint32_t>(known - names_.begin());
}

}  // namespace twinrun
