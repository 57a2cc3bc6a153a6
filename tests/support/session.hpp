// Sessions of one process; unless told otherwise, each step is committed when capture returns.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/session.hpp"

namespace twinrun::testing {

// The values as a field of one dimension.
inline CapturedField captured(std::string name, std::vector<double>& values) {
    CapturedField one;
    one.name = std::move(name);
    one.dtype = DType::f64;
    one.shape = {values.size()};
    one.data = values.data();
    return one;
}

// Fields of doubles, and what they are.
class DoubleFields {
   public:
    explicit DoubleFields(const std::vector<std::size_t>& sizes) {
        for (const std::size_t n : sizes)
            fields.emplace_back(n);
    }
    // value: of an item, by its field and its place there.
    template <class Value>
    void fill(const Value& value) {
        for (std::size_t f = 0; f < fields.size(); ++f) {
            for (std::size_t i = 0; i < fields[f].size(); ++i)
                fields[f][i] = value(f, i);
        }
    }
    template <class Value>
    [[nodiscard]] bool hold(const Value& value) const {
        for (std::size_t f = 0; f < fields.size(); ++f) {
            for (std::size_t i = 0; i < fields[f].size(); ++i) {
                if (fields[f][i] != value(f, i)) return false;
            }
        }
        return true;
    }
    std::vector<CapturedField> list() {
        std::vector<CapturedField> all;
        for (std::size_t f = 0; f < fields.size(); ++f)
            all.push_back(captured("field" + std::to_string(f), fields[f]));
        return all;
    }

    std::vector<std::vector<double>> fields;
};

// For tests of very many small files: in memory, where the system has such a folder.
inline std::filesystem::path quick_folder() {
    std::error_code failure;
    const std::filesystem::path memory = "/dev/shm";
    return std::filesystem::is_directory(memory, failure) ? memory : std::filesystem::temp_directory_path();
}

inline Result<std::unique_ptr<Session>> open_run(FileSystem& system, const std::string& path,
                                                 SessionSettings settings) {
    static SelfComm alone;
    return Session::open(system, alone, path, std::move(settings));
}

inline Result<std::unique_ptr<Session>> open_run(FileSystem& system, const std::string& path,
                                                 const HistorySettings& history,
                                                 Existing existing = Existing::refuse) {
    SessionSettings settings;
    settings.history = history;
    settings.existing = existing;
    settings.background = false;
    return open_run(system, path, std::move(settings));
}

}  // namespace twinrun::testing
