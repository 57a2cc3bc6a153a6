// The types behind the opaque types of the C interface.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "twinrun/twinrun.h"

struct twr_settings {
    twinrun::SessionSettings values;
};

struct twr_run {
    // Before the session, which uses these to its end.
    std::unique_ptr<twinrun::Comm> comm;
    // Protects the callback, and is held while it runs: after a replacement, no call of the old one
    // runs.
    std::mutex mutex;
    twr_divergence_callback callback = nullptr;
    void* context = nullptr;
    std::unique_ptr<twinrun::Session> session;
    bool stop_on_divergence = false;
    std::optional<twinrun::CaptureReport> last;
    // Lost steps that no call has reported yet. A call that returns TWR_DIVERGED leaves them to the
    // next call.
    std::vector<twinrun::LostStep> unreported;
    std::string report;  // of twr_report_json
};
