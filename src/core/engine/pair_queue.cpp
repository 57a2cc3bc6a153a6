#include "engine/pair_queue.hpp"

#include <chrono>
#include <system_error>
#include <utility>

#include "base/start_thread.hpp"

namespace twinrun {

namespace {
constexpr auto kAsked = std::chrono::milliseconds(50);  // whether a caller that waits goes on
}  // namespace

PairQueue::~PairQueue() {
    if (!thread_.joinable()) return;
    stops_.store(true);
    hand_over(true);
    thread_.join();
}

bool PairQueue::takes(int device) {
    const auto [known, is_new] = takes_.try_emplace(device);
    if (is_new) {
        const std::lock_guard lock(in_use_);
        known->second = stream_.takes(device);
    }
    return known->second;
}

void PairQueue::add(std::size_t number, int device, const DevicePair& pair) {
    ++count_;
    if (count_ == kAlone) {
        try {
            thread_ = start_thread([this] { work(); });
        } catch (const std::system_error&) {  // none can be started: this one does it
        }
    }
    if (!thread_.joinable()) return stream_.add(number, device, pair);
    added_.push_back({number, device, pair});
    if (added_.size() >= kHandedOver) hand_over(false);
}

void PairQueue::hand_over(bool ends) {
    {
        const std::lock_guard lock(mutex_);
        if (queue_.empty()) {
            queue_.swap(added_);
        } else {
            queue_.insert(queue_.end(), added_.begin(), added_.end());
        }
        ends_ = ends_ || ends;
    }
    added_.clear();
    changed_.notify_all();
}

void PairQueue::start(bool leads) {
    leads_ = leads;
    if (thread_.joinable()) return hand_over(true);
    stream_.start();
    if (leads) led_ = stream_.lead();
}

bool PairQueue::led() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return led_.has_value() || finished_.load(); });
    return led_.value_or(false);
}

void PairQueue::finish(const std::function<bool()>& goes_on) {
    if (!thread_.joinable()) return stream_.finish(goes_on);
    {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, kAsked, [&] { return finished_.load(); })) {
            lock.unlock();
            if (!goes_on()) stops_.store(true);
            lock.lock();
        }
    }
    thread_.join();
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void PairQueue::work() {
    std::exception_ptr thrown;
    try {
        work_through();
    } catch (...) {
        thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    thrown_ = std::move(thrown);
    finished_.store(true);
    changed_.notify_all();
}

void PairQueue::work_through() {
    for (bool ends = false; !ends;) {
        std::vector<Added> some;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
            some.swap(queue_);
            ends = ends_;
        }
        if (stops_.load()) return;
        const std::lock_guard lock(in_use_);
        for (const Added& one : some)
            stream_.add(one.number, one.device, one.pair);
    }
    const std::lock_guard in_use(in_use_);
    stream_.start();
    bool leads = false;
    {
        const std::lock_guard lock(mutex_);
        leads = leads_;
    }
    if (leads) {
        const bool led = stream_.lead();
        const std::lock_guard lock(mutex_);
        led_ = led;
        changed_.notify_all();
    }
    stream_.finish([this] { return !stops_.load(); });
}

}  // namespace twinrun
