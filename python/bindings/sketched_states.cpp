#include "sketched_states.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {

namespace {

constexpr std::size_t kMostStates = 8;
constexpr std::size_t kMostFields = 1 << 16;  // of all states; a kilobyte each

// The newest last.
std::vector<std::shared_ptr<const SketchedState>>& sketched_states() {
    // Never destroyed: Python may be gone before it would be.
    static auto* const all = new std::vector<std::shared_ptr<const SketchedState>>;
    return *all;
}

}  // namespace

SketchedState::SketchedState(SketchSettings settings, std::vector<TakenField> fields,
                             std::vector<PlannedOnDevice> planned)
    : settings_(std::move(settings)), fields_(std::move(fields)), is_planned_(fields_.size()) {
    for (TakenField& field : fields_)
        field.owner = {};
    for (PlannedOnDevice& one : planned) {
        const std::vector<std::size_t>& numbers = one.planned.numbers;
        // What is gathered is planned anew: how much memory there is for that changes.
        const bool is_dense = std::all_of(numbers.begin(), numbers.end(),
                                          [&](std::size_t n) { return fields_[n].strides.empty(); });
        if (!is_dense) continue;
        for (const std::size_t n : numbers)
            is_planned_[n] = true;
        planned_.push_back(std::move(one));
    }
    std::sort(planned_.begin(), planned_.end(), [](const PlannedOnDevice& a, const PlannedOnDevice& b) {
        return a.planned.numbers.back() < b.planned.numbers.back();
    });
}

bool SketchedState::is(std::size_t number, const TakenField& field) const {
    if (number >= fields_.size()) return false;
    const TakenField& known = fields_[number];
    return known.data == field.data && known.items == field.items && known.dtype == field.dtype &&
           known.fortran_order == field.fortran_order && known.device == field.device &&
           known.stream == field.stream && known.shape == field.shape && known.strides == field.strides &&
           (known.name.ptr() == field.name.ptr() || known.text == field.text);
}

std::shared_ptr<const SketchedState> find_sketched(const SketchSettings& settings, const TakenField& first) {
    auto& all = sketched_states();
    for (auto known = all.rbegin(); known != all.rend(); ++known) {
        if (!(*known)->is(0, first) || (*known)->settings() != settings) continue;
        std::shared_ptr<const SketchedState> found = *known;
        std::rotate(std::next(known).base(), known.base(), all.end());
        return found;
    }
    return nullptr;
}

void keep_sketched(std::shared_ptr<const SketchedState> state) {
    auto& all = sketched_states();
    if (state->size() > kMostFields) return;
    std::vector<std::shared_ptr<const SketchedState>> gone;  // its names, too, end after all is done
    all.push_back(std::move(state));
    std::size_t fields = 0;
    for (const auto& one : all)
        fields += one->size();
    while (all.size() > kMostStates || fields > kMostFields) {
        fields -= all.front()->size();
        gone.push_back(std::move(all.front()));
        all.erase(all.begin());
    }
}

}  // namespace twinrun
