// Sessions of one process; unless told otherwise, each step is committed when capture returns.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "capture/session.hpp"

namespace twinrun::testing {

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
