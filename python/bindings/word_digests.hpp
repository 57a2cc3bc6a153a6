// Digests of the words of many arrays, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "history/field.hpp"
#include "listed_arrays.hpp"
#include "sketch/word_roots.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Arrays are added and started, and their roots are read later. Arrays that the core does not take
// by itself are put in by Python. Python's lock guards it.
class WordDigests {
   public:
    // Takes memory for so many arrays.
    void reserve(std::size_t count);
    // The next array.
    void add(ArrayTaker& taker, nanobind::handle array);
    // Numbers of arrays that put() has to bring.
    [[nodiscard]] std::vector<std::size_t> missing() const;
    void put(std::size_t at, const CapturedField& words, const std::string& kind,
             const std::vector<std::uint64_t>& shape);
    // Arrays in host memory are digested now, by one thread if they have fewer bytes; others in the
    // background. Raises what WordRoots::start() says.
    void start(std::uint64_t few_bytes);
    [[nodiscard]] bool on_devices() const { return started_ && started_->on_devices(); }
    // Waits for devices. One an array.
    std::vector<std::uint64_t> roots();

    // What an array is: its type as PyTorch and NumPy write it, and its shape.
    struct Form {
        std::string kind;
        std::vector<std::uint64_t> shape;  // no object: Python's garbage collector would look at it
    };
    [[nodiscard]] const std::vector<Form>& forms() const { return forms_; }
    // Whether the core took all arrays, and each is row-major without gaps.
    [[nodiscard]] bool is_usual() const { return is_usual_; }
    // The arrays, until they were started.
    [[nodiscard]] nanobind::list arrays() const;

   private:
    std::vector<Form> forms_;
    std::vector<DeviceArray> words_;        // until they were started; on the host: dense
    std::vector<nanobind::object> owners_;  // of these
    std::vector<bool> there_;
    bool is_usual_ = true;
    std::optional<WordRoots> started_;
};

}  // namespace twinrun
