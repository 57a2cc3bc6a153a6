// What is known of an operation of PyTorch by what it takes and gives: a training calls it again
// and again with the same types and the same plain values.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "word_digests.hpp"

namespace twinrun {

// A call that ran: its tensors, in order, and what is known of calls like it. Python's lock guards
// it.
class OperationCall : public WordDigests {
   public:
    // Invalid: nothing yet.
    [[nodiscard]] const nanobind::object& known() const { return known_; }

   private:
    friend class OperationPlans;
    std::string key_;
    std::vector<nanobind::object> named_;  // objects that the key tells by their addresses
    nanobind::object known_;
};

// Of one operation, by the types of all values, and by those values that are no tensors.
class OperationPlans {
   public:
    // Null where a value is of a type that a key cannot tell. named: by name.
    std::unique_ptr<OperationCall> call(const nanobind::tuple& args, const nanobind::dict& named,
                                        nanobind::handle result) const;
    // What is known of this call and of those like it.
    void keep(OperationCall& call, nanobind::object known);

   private:
    // With more of them all are forgotten: values that are never the same would fill the memory.
    static constexpr std::size_t kMost = 1024;

    struct Plan {
        nanobind::object known;
        std::vector<nanobind::object> named;
    };
    std::unordered_map<std::string, Plan> plans_;
};

}  // namespace twinrun
