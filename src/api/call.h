// What every function of the headers does first: it checks the object and guards against
// exceptions. The rooms below do the work itself.
#pragma once

#include <exception>
#include <memory>
#include <new>

#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "capture/capturer.h"
#include "routecap.h"
#include "routing/routing.h"

namespace routecap {

// What a capturer's handle points to: the object, and the process it was made in. The public types
// stay incomplete even here. If debug information said what is behind them, abidiff would count
// every change of it as a change of the ABI.
struct CapturerHandle {
    std::unique_ptr<Capturer> object;
    uint32_t process;
};
inline routecap_capturer *capturer_handle(CapturerHandle *handle) {
    return reinterpret_cast<routecap_capturer *>(handle);
}
inline const CapturerHandle *handle_of(const routecap_capturer *capturer) {
    return reinterpret_cast<const CapturerHandle *>(capturer);
}

template <class Body>
int32_t caught(Body body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return report(ROUTECAP_ERR_NO_MEMORY, "the system has no memory left");
    } catch (const std::exception &e) {
        return report(ROUTECAP_ERR_INTERNAL, "%s", e.what());
    } catch (...) {
        return report(ROUTECAP_ERR_INTERNAL, "unknown exception");
    }
}

// Turns exceptions into statuses, and logs an error that the call returns. `call` is the name of
// the function that the caller called, here and below. It is null if an outer guard logs the error.
template <class Body>
int32_t guard(Body body, const char *call = __builtin_FUNCTION()) noexcept {
    const int32_t status = caught(body);
    if (status < 0 && call != nullptr) [[unlikely]]
        tell_refusal(status, call);
    return status;
}

inline int32_t forked() {
    return report(ROUTECAP_ERR_FORKED,
                  "this object was made before fork(); it works in the parent only");
}

template <class Body>
int32_t with(const routecap_capturer *capturer, Body body,
             const char *call = __builtin_FUNCTION()) noexcept {
    if (capturer == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "capturer is NULL");
    if (handle_of(capturer)->process != process_generation()) return forked();
    return guard([&] { return body(*handle_of(capturer)->object); }, call);
}

// The same for functions of the forward path. In checked mode it refuses a second thread.
template <class Body>
int32_t on_forward_path(const routecap_capturer *capturer, Body body,
                        const char *call = __builtin_FUNCTION()) noexcept {
    const auto alone = [&](Capturer &c) {
        const ForwardCheck::Call entered(c.forward.check());
        const int32_t status = entered.status();
        return status < 0 ? status : body(c);
    };
    return with(capturer, alone, call);
}

inline routecap_routing *routing_handle(Routing *routing) {
    return reinterpret_cast<routecap_routing *>(routing);
}
inline Routing **routing_output(routecap_routing **routing) {
    return reinterpret_cast<Routing **>(routing);
}
inline const Routing *routing_of(const routecap_routing *routing) {
    return reinterpret_cast<const Routing *>(routing);
}

template <class Body>
int32_t with(const routecap_routing *routing, Body body,
             const char *call = __builtin_FUNCTION()) noexcept {
    if (routing == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "routing is NULL");
    if (routing_of(routing)->process() != process_generation()) return forked();
    return guard([&] { return body(*routing_of(routing)); }, call);
}

// The same for functions that need a routing's rows.
template <class Body>
int32_t with_rows(const routecap_routing *routing, Body body,
                  const char *call = __builtin_FUNCTION()) noexcept {
    const auto ready = [&](const Routing &r) {
        return r.ready() ? body(r)
                         : report(ROUTECAP_ERR_NOT_READY, "the routing's last step has not landed");
    };
    return with(routing, ready, call);
}

// Clears an output handle.
template <class Output>
int32_t clear(Output *output, const char *name) noexcept {
    if (output == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    *output = Output{};
    return ROUTECAP_OK;
}

}  // namespace routecap
