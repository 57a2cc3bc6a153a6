// Seconds since it was made. Safe from several threads.
#pragma once

#include <chrono>

namespace twinrun {

class Stopwatch {
   public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

   private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace twinrun
