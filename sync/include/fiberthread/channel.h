// SPDX-License-Identifier: MIT
// Channel: values from any number of senders to any number of receivers; and select, over several channels at once.
//
//     auto [tx, rx] = fiberthread::Channel<int>::make(16);
//     tx.send(1);                                            // 0, or why not
//     while (auto v = rx.receive()) use(*v);                 // until it is closed and empty
//     auto chosen = select(ReceiveCase(rx, x), SendCase(other, 7));
//
// A channel has room for `capacity` values; one without room (0) hands each value from a sender that has come to a receiver that has come
// (a rendezvous: Hoare, "Communicating Sequential Processes", CACM 1978). Values are received in the order in which they were sent;
// senders that wait are served in the order in which they came, receivers too. A value goes straight to a waiting receiver, else into
// the buffer, else its sender waits.
//
// Closed is a channel when close() was called, or the last of its senders or of its receivers is gone. From then on sends fail with
// ClosedChannel, waiting senders are woken with it and keep their values, values in the buffer can still be received, and then
// receivers get ClosedChannel. Values that nobody can receive any more are destroyed with the last receiver.
//
// Errors: 0; ClosedChannel (EPIPE); EAGAIN from try_… if it would have to wait; ETIMEDOUT; ECANCELED if the fiber was cancelled; EINVAL
// for a handle that stands for no channel (default-made, moved from, or made without memory). With any of them nothing has happened:
// what was to be sent is still the caller's, what was to be received still in the channel. What need not wait does not look at
// deadlines and cancellation.
//
// Who may call: fibers, bound fibers and foreign threads, also several on one handle at once; not signal handlers. send, receive and select
// park if they must wait; what begins with try_, and all else, never parks.
//
// Cost: buffered send or receive that need not wait: one compare-and-swap without a lock. Values that are not trivially copyable
// (or declared by ChannelRelocatable) or larger than 64 bytes travel in a box, which costs an allocation.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

// What a send to, and a receive from, a closed channel returns.
constexpr int ClosedChannel = EPIPE;

class ChannelCore;
struct ChannelWait;

// ---- the part that does not depend on the type of values; called by the templates below ----

// Null without memory. Values are moved as bytes; drop() destroys one that is left.
FIBERTHREAD_API ChannelCore* channel_make(size_t capacity, size_t value_size, void (*drop)(void*));
FIBERTHREAD_API void channel_hold(ChannelCore* channel, bool sender);
FIBERTHREAD_API void channel_release(ChannelCore* channel, bool sender);
// deadline 0: EAGAIN instead of waiting.
FIBERTHREAD_API int channel_send(ChannelCore* channel, const void* value, uint64_t deadline_ns);
FIBERTHREAD_API int channel_receive(ChannelCore* channel, void* value, uint64_t deadline_ns);
FIBERTHREAD_API void channel_close(ChannelCore* channel);
FIBERTHREAD_API bool channel_is_closed(const ChannelCore* channel);
FIBERTHREAD_API size_t channel_size(const ChannelCore* channel);
FIBERTHREAD_API size_t channel_capacity(const ChannelCore* channel);

// A value of this type may be moved to other memory by copying its bytes, if nobody destroys it where it was. Specialise it for your
// own types where that is so: they then need no box.
template <class T>
struct ChannelRelocatable : std::is_trivially_copyable<T> {};
template <class T>
struct ChannelRelocatable<std::unique_ptr<T>> : std::true_type {};

// A value on its way, as the bytes that the channel moves: itself, or a pointer to its box.
template <class T>
class ChannelSlot {
 public:
  static constexpr bool kBoxed = !ChannelRelocatable<T>::value || sizeof(T) > 64 || alignof(T) > 8;
  static constexpr bool kPlain = !kBoxed && std::is_trivially_copyable<T>::value;  // goes without a slot
  using Carried = std::conditional_t<kBoxed, T*, T>;
  static constexpr size_t kSize = sizeof(Carried);
  static_assert(std::is_nothrow_move_constructible<T>::value, "a value on its way must not be lost by an exception");

  void* bytes() { return bytes_; }
  void put(T&& v) {
    if constexpr (kBoxed) ::new (bytes_) Carried(new T(std::move(v)));
    else ::new (bytes_) T(std::move(v));
  }
  T& value() {
    auto* carried = std::launder(reinterpret_cast<Carried*>(bytes_));
    if constexpr (kBoxed) return **carried;
    else return *carried;
  }
  void drop() {
    if constexpr (kBoxed) delete &value();
    else value().~T();
  }
  // Into what holds a value already, or back to where put() took it from.
  void move_to(T& to) {
    if constexpr (std::is_move_assignable<T>::value) {
      to = std::move(value());
    } else {
      to.~T();
      ::new (static_cast<void*>(&to)) T(std::move(value()));
    }
    drop();
  }
  static void drop_bytes(void* bytes) {
    ChannelSlot slot;
    std::memcpy(slot.bytes_, bytes, kSize);
    slot.drop();
  }
  static constexpr void (*kDrop)(void*) = std::is_trivially_destructible<Carried>::value && !kBoxed ? nullptr : drop_bytes;

 private:
  alignas(Carried) unsigned char bytes_[kSize];
};

// ---- handles ----

// What both kinds of handle have in common. A handle is copied and dropped by counting.
template <bool kSender>
class ChannelHandle {
 public:
  ChannelHandle() = default;
  ChannelHandle(const ChannelHandle& o) : core_(o.core_) {
    if (core_) channel_hold(core_, kSender);
  }
  ChannelHandle(ChannelHandle&& o) noexcept : core_(std::exchange(o.core_, nullptr)) {}
  ChannelHandle& operator=(ChannelHandle o) noexcept {
    std::swap(core_, o.core_);
    return *this;
  }
  ~ChannelHandle() { reset(); }

  // Gives the handle up. The last one of its side closes the channel.
  void reset() {
    if (ChannelCore* c = std::exchange(core_, nullptr)) channel_release(c, kSender);
  }
  explicit operator bool() const { return core_; }
  // Two handles of one channel?
  template <bool kOther>
  bool same_channel(const ChannelHandle<kOther>& o) const {
    return core_ == o.core();
  }
  // Closing twice does nothing.
  void close() const {
    if (core_) channel_close(core_);
  }
  // May be out of date at once, unless true.
  bool closed() const { return !core_ || channel_is_closed(core_); }
  // Values in the buffer; may be out of date at once.
  size_t size() const { return core_ ? channel_size(core_) : 0; }
  size_t capacity() const { return core_ ? channel_capacity(core_) : 0; }
  ChannelCore* core() const { return core_; }

 protected:
  explicit ChannelHandle(ChannelCore* c) : core_(c) {}
  static uint64_t until(uint64_t deadline_ns) { return deadline_ns ? deadline_ns : 1; }  // 0 is another thing to the core
  ChannelCore* core_ = nullptr;
};

template <class T>
class Channel;

template <class T>
class Sender : public ChannelHandle<true> {
 public:
  Sender() = default;

  int send(T&& v) const { return move_in(v, kForever); }
  int send(const T& v) const { return copy_in(v, kForever); }
  int send_until(T&& v, uint64_t deadline_ns) const { return move_in(v, until(deadline_ns)); }
  int send_until(const T& v, uint64_t deadline_ns) const { return copy_in(v, until(deadline_ns)); }
  int send_for(T&& v, uint64_t timeout_ns) const {
    int e = move_in(v, 0);  // the clock is read only if need be
    return e == EAGAIN ? move_in(v, deadline_after(timeout_ns)) : e;
  }
  int send_for(const T& v, uint64_t timeout_ns) const {
    int e = copy_in(v, 0);
    return e == EAGAIN ? copy_in(v, deadline_after(timeout_ns)) : e;
  }
  int try_send(T&& v) const { return move_in(v, 0); }
  int try_send(const T& v) const { return copy_in(v, 0); }

 private:
  friend class Channel<T>;
  using ChannelHandle<true>::ChannelHandle;
  int move_in(T& v, uint64_t deadline_ns) const {
    if (!core_) return EINVAL;
    if constexpr (ChannelSlot<T>::kPlain) {
      return channel_send(core_, &v, deadline_ns);
    } else {
      ChannelSlot<T> slot;
      slot.put(std::move(v));
      int e = channel_send(core_, slot.bytes(), deadline_ns);
      if (e) slot.move_to(v);
      return e;
    }
  }
  int copy_in(const T& v, uint64_t deadline_ns) const {
    if constexpr (ChannelSlot<T>::kPlain) {
      return core_ ? channel_send(core_, &v, deadline_ns) : EINVAL;
    } else {
      T copy(v);
      return move_in(copy, deadline_ns);
    }
  }
};

template <class T>
class Receiver : public ChannelHandle<false> {
 public:
  Receiver() = default;

  int receive(T& into) const { return take(into, kForever); }
  int receive_until(T& into, uint64_t deadline_ns) const { return take(into, until(deadline_ns)); }
  int receive_for(T& into, uint64_t timeout_ns) const {
    int e = take(into, 0);
    return e == EAGAIN ? take(into, deadline_after(timeout_ns)) : e;
  }
  int try_receive(T& into) const { return take(into, 0); }
  // Nothing, if receive() would fail.
  std::optional<T> receive() const { return take(kForever); }
  std::optional<T> try_receive() const { return take(0); }

 private:
  friend class Channel<T>;
  using ChannelHandle<false>::ChannelHandle;
  int take(T& into, uint64_t deadline_ns) const {
    if (!core_) return EINVAL;
    if constexpr (ChannelSlot<T>::kPlain) {
      return channel_receive(core_, &into, deadline_ns);
    } else {
      ChannelSlot<T> slot;
      int e = channel_receive(core_, slot.bytes(), deadline_ns);
      if (!e) slot.move_to(into);
      return e;
    }
  }
  std::optional<T> take(uint64_t deadline_ns) const {
    ChannelSlot<T> slot;
    if (!core_ || channel_receive(core_, slot.bytes(), deadline_ns)) return std::nullopt;
    std::optional<T> v(std::move(slot.value()));
    slot.drop();
    return v;
  }
};

// What make() returns: `auto [tx, rx] = Channel<int>::make(16);`.
template <class T>
class Channel {
 public:
  Sender<T> sender;
  Receiver<T> receiver;

  // Without memory both handles are empty.
  static Channel make(size_t capacity) {
    ChannelCore* c = channel_make(capacity, ChannelSlot<T>::kSize, ChannelSlot<T>::kDrop);
    return Channel{Sender<T>(c), Receiver<T>(c)};
  }
};

// ---- select ----

// One of the operations that a select chooses from. Made anew for each select, or used again; in one select at a time.
class SelectCase {
 public:
  SelectCase(const SelectCase&) = delete;
  SelectCase& operator=(const SelectCase&) = delete;

 protected:
  using Finish = void (*)(SelectCase& self, int error);
  SelectCase(ChannelCore* channel, bool sends, Finish finish) : channel_(channel), finish_(finish), sends_(sends) {}
  ~SelectCase() = default;

  ChannelCore* channel_;  // null: never chosen
  void* value_ = nullptr;

 private:
  friend struct SelectInside;  // the library's
  friend class ChannelCore;
  friend class CaseList;
  Finish finish_;  // called when it was chosen; null: nothing to do
  SelectCase* next_ = nullptr;
  SelectCase* prev_ = nullptr;
  SelectCase* next_locked_ = nullptr;
  ChannelWait* wait_ = nullptr;
  int32_t index_ = 0;
  bool sends_;
  bool queued_ = false;
};

// Chosen if a value could be received, which is then in `into`, or the channel is closed and empty. A case of an empty handle is
// never chosen.
template <class T>
class ReceiveCase : public SelectCase {
 public:
  ReceiveCase(const Receiver<T>& from, T& into) : SelectCase(from.core(), false, finish), into_(into) {
    value_ = ChannelSlot<T>::kPlain ? static_cast<void*>(&into) : slot_.bytes();
  }

 private:
  static void finish(SelectCase& self, int error) {
    auto& me = static_cast<ReceiveCase&>(self);
    if (!ChannelSlot<T>::kPlain && error == 0) me.slot_.move_to(me.into_);
  }
  T& into_;
  ChannelSlot<T> slot_;
};

// Chosen if its value could be sent, or the channel is closed: then it keeps its value. It is never chosen without one: of an empty
// handle, or once it has sent its value, until put() gives it another.
template <class T>
class SendCase : public SelectCase {
 public:
  SendCase(const Sender<T>& to, T v) : SelectCase(nullptr, true, finish), to_(to.core()) {
    value_ = slot_.bytes();
    put(std::move(v));
  }
  ~SendCase() { clear(); }

  void put(T v) {
    clear();
    slot_.put(std::move(v));
    full_ = true;
    channel_ = to_;
  }
  // What has not been sent yet; only while has_value().
  T& value() { return slot_.value(); }
  bool has_value() const { return full_; }

 private:
  static void finish(SelectCase& self, int error) {
    auto& me = static_cast<SendCase&>(self);
    if (error) return;
    me.full_ = false;
    me.channel_ = nullptr;
  }
  void clear() {
    if (full_) slot_.drop();
    full_ = false;
    channel_ = nullptr;
  }
  ChannelCore* to_;
  bool full_ = false;
  ChannelSlot<T> slot_;
};

// What a select has done.
struct Selected {
  int index;  // of the case, from 0; -1: none, and `error` says why
  int error;  // of the case: 0 or ClosedChannel. Of none: EAGAIN, ETIMEDOUT, ECANCELED, EINVAL
};

// Waits until one of the cases can happen, does exactly that one and says which. If several can, any of them is chosen, each as
// likely. deadline 0: EAGAIN instead of waiting, if at one moment none could. EINVAL if none ever can and there is no deadline.
FIBERTHREAD_API Selected select_cases(SelectCase* const* cases, size_t n, uint64_t deadline_ns);

template <class... Cases>
Selected select(Cases&&... cases) {
  SelectCase* all[] = {&cases..., nullptr};
  return select_cases(all, sizeof...(cases), kForever);
}
template <class... Cases>
Selected select_until(uint64_t deadline_ns, Cases&&... cases) {
  SelectCase* all[] = {&cases..., nullptr};
  return select_cases(all, sizeof...(cases), deadline_ns ? deadline_ns : 1);
}
template <class... Cases>
Selected select_for(uint64_t timeout_ns, Cases&&... cases) {
  return select_until(deadline_after(timeout_ns), cases...);
}
// The default: returns at once.
template <class... Cases>
Selected try_select(Cases&&... cases) {
  SelectCase* all[] = {&cases..., nullptr};
  return select_cases(all, sizeof...(cases), 0);
}

}  // namespace fiberthread
