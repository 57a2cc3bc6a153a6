// By which rules the fields of a list are compared.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "difference/difference.hpp"
#include "field_list.hpp"

namespace twinrun {

namespace nb = nanobind;

// How fields are compared that a rule is for.
struct ListRule {
    DifferenceRule rule;
    bool own_tolerance = false;  // that of the metadata counts
};

inline constexpr int kLeftOut = -1;  // instead of a rule's number

// The numbers of the rules of fields of floating-point numbers, and of all others.
struct RulesByKind {
    int of_floating, of_others;
};
// Of each field of a list the number of its rule, kLeftOut for none.
class ChosenRules {
   public:
    using Given = std::variant<RulesByKind, std::vector<int>>;
    ChosenRules(const Given& given, const FieldList& list) : fields_(list.fields()) {
        if (const auto* by_kind = std::get_if<RulesByKind>(&given)) by_kind_ = *by_kind;
        if (const auto* each = std::get_if<std::vector<int>>(&given)) each_ = *each;
        if (!by_kind_ && each_.size() != fields_.size())
            raise({ErrorCode::invalid_argument, "a rule or none for each field"});
    }
    [[nodiscard]] std::size_t size() const { return fields_.size(); }
    int operator[](std::size_t at) const {
        if (!by_kind_) return each_[at];
        return is_floating(scalar_type(fields_[at].dtype)) ? by_kind_->of_floating : by_kind_->of_others;
    }
    [[nodiscard]] std::size_t count() const;

   private:
    const std::vector<TakenField>& fields_;
    std::optional<RulesByKind> by_kind_;
    std::vector<int> each_;
};

// Whether it makes a difference which index of such an array runs fastest.
bool order_matters(std::span<const std::uint64_t> shape);
// Whether the first index of the array runs fastest, and that matters.
bool in_columns(const TakenField& field);

void define_list_rules(nb::module_& m);

}  // namespace twinrun
