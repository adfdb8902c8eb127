// SPDX-License-Identifier: MIT
// Channel: values from any number of senders to any number of receivers; and select, over several channels at once.
//
//     auto [tx, rx] = fiberthread::Channel<int>::make(16);
//     tx.send(1);                                            // 0, or why not
//     while (auto v = rx.receive()) use(*v);                 // until it is closed and empty
//     auto chosen = select(ReceiveCase(rx, x), SendCase(other, 7));
//
// A channel has room for `capacity` values. A channel without room (0) hands each value from a sender that has come to a receiver that has
// come (a rendezvous: Hoare, "Communicating Sequential Processes", CACM 1978). Values are received in the order in which they were sent.
// Waiting senders are served in the order in which they came, and so are waiting receivers. A value goes straight to a waiting receiver,
// else into the buffer, else its sender waits.
//
// close() closes a channel, and so does the end of the last of its senders or of the last of its receivers. From then on sends fail with
// ClosedChannel. Waiting senders are woken with it and keep their values. Values in the buffer can still be received, and then receivers
// get ClosedChannel, too. Values that no receiver can get any more are destroyed with the last receiver.
//
// Errors: ClosedChannel (EPIPE). EAGAIN: a try_… function would have to wait. ETIMEDOUT: the time has passed. ECANCELED: the fiber was
// cancelled. EINVAL: the handle stands for no channel (default-made, moved from, or made without memory). With any of them nothing has
// happened: the sender keeps its value, and the channel keeps the value that was to be received. A call that need not wait looks neither at
// the deadline nor at cancellation.
//
// Who may call: fibers and foreign threads, several also on one handle at once; not signal handlers. send, receive and select park if they
// must wait. All other functions, and those that begin with try_, never park.
//
// Deadlines (…_until) are nanoseconds on CLOCK_MONOTONIC, timeouts (…_for) are nanoseconds from now.
//
// Cost: a buffered send or receive that need not wait is one compare-and-swap without a lock. Values that are not trivially copyable (or
// declared by ChannelRelocatable), or larger than 64 bytes, travel in a box, which costs an allocation.
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

// The error of sends to, and receives from, a closed channel.
constexpr int ClosedChannel = EPIPE;

class ChannelCore;
struct ChannelWait;

// ---- the part that does not depend on the type of values; called by the templates below ----

// Makes a channel for values of `value_size` bytes. Values are moved as bytes. drop() destroys a value that is left. Returns null without
// memory.
FIBERTHREAD_API ChannelCore* channel_make(size_t capacity, size_t value_size, void (*drop)(void*));
// Counts a handle up, or down. The last handle of a side closes the channel.
FIBERTHREAD_API void channel_hold(ChannelCore* channel, bool sender);
FIBERTHREAD_API void channel_release(ChannelCore* channel, bool sender);
// Sends or receives the bytes of one value. With the deadline 0 it returns EAGAIN instead of waiting.
FIBERTHREAD_API int channel_send(ChannelCore* channel, const void* value, uint64_t deadline_ns);
FIBERTHREAD_API int channel_receive(ChannelCore* channel, void* value, uint64_t deadline_ns);
FIBERTHREAD_API void channel_close(ChannelCore* channel);
FIBERTHREAD_API bool channel_is_closed(const ChannelCore* channel);
FIBERTHREAD_API size_t channel_size(const ChannelCore* channel);
FIBERTHREAD_API size_t channel_capacity(const ChannelCore* channel);

// True for a type whose values may be moved to other memory by copying their bytes, if nothing destroys them where they were. Specialise it
// for such types of your own. Their values then need no box.
template <class T>
struct ChannelRelocatable : std::is_trivially_copyable<T> {};
template <class T>
struct ChannelRelocatable<std::unique_ptr<T>> : std::true_type {};

// One value on its way, as the bytes that the channel moves: the value itself, or a pointer to its box.
template <class T>
class ChannelSlot {
 public:
  static constexpr bool kBoxed = !ChannelRelocatable<T>::value || sizeof(T) > 64 || alignof(T) > 8;
  static constexpr bool kPlain = !kBoxed && std::is_trivially_copyable<T>::value;  // travels without a slot
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
  // Moves the value into an object that holds a value already, or back to where put() took it from.
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

// The common part of both kinds of handle. The channel counts its handles, so they can be copied and dropped. Fibers and foreign threads
// may call all members. None of them parks.
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

  // Gives the handle up. The last handle of its side closes the channel. Never parks.
  void reset() {
    if (ChannelCore* c = std::exchange(core_, nullptr)) channel_release(c, kSender);
  }
  explicit operator bool() const { return core_; }
  // Returns whether both are handles of one channel. Never parks.
  template <bool kOther>
  bool same_channel(const ChannelHandle<kOther>& o) const {
    return core_ == o.core();
  }
  // Closes the channel, and wakes all waiters. A second call does nothing. Never parks.
  void close() const {
    if (core_) channel_close(core_);
  }
  // Returns whether the channel is closed. False may be out of date at once. Never parks.
  bool closed() const { return !core_ || channel_is_closed(core_); }
  // Returns the number of values in the buffer, which may be out of date at once. Never parks.
  size_t size() const { return core_ ? channel_size(core_) : 0; }
  // Returns the number of values that the channel has room for. Never parks.
  size_t capacity() const { return core_ ? channel_capacity(core_) : 0; }
  ChannelCore* core() const { return core_; }

 protected:
  explicit ChannelHandle(ChannelCore* c) : core_(c) {}
  static uint64_t until(uint64_t deadline_ns) { return deadline_ns ? deadline_ns : 1; }  // to the core, 0 means something else
  ChannelCore* core_ = nullptr;
};

template <class T>
class Channel;

// The sending handle. Errors and callers as above.
template <class T>
class Sender : public ChannelHandle<true> {
 public:
  Sender() = default;

  // Sends `v`: ClosedChannel, ETIMEDOUT, ECANCELED, EINVAL. On an error, `v` has its value back. Fibers and foreign threads. May park.
  int send(T&& v) const { return move_in(v, kForever); }
  int send(const T& v) const { return copy_in(v, kForever); }
  int send_until(T&& v, uint64_t deadline_ns) const { return move_in(v, until(deadline_ns)); }
  int send_until(const T& v, uint64_t deadline_ns) const { return copy_in(v, until(deadline_ns)); }
  int send_for(T&& v, uint64_t timeout_ns) const {
    int e = move_in(v, 0);  // the clock is read only if the send must wait
    return e == EAGAIN ? move_in(v, deadline_after(timeout_ns)) : e;
  }
  int send_for(const T& v, uint64_t timeout_ns) const {
    int e = copy_in(v, 0);
    return e == EAGAIN ? copy_in(v, deadline_after(timeout_ns)) : e;
  }
  // Sends `v` if that needs no wait: ClosedChannel, EAGAIN, EINVAL. Fibers and foreign threads. Never parks.
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

// The receiving handle. Errors and callers as above.
template <class T>
class Receiver : public ChannelHandle<false> {
 public:
  Receiver() = default;

  // Receives a value into `into`: ClosedChannel, ETIMEDOUT, ECANCELED, EINVAL. Fibers and foreign threads. May park.
  int receive(T& into) const { return take(into, kForever); }
  int receive_until(T& into, uint64_t deadline_ns) const { return take(into, until(deadline_ns)); }
  int receive_for(T& into, uint64_t timeout_ns) const {
    int e = take(into, 0);
    return e == EAGAIN ? take(into, deadline_after(timeout_ns)) : e;
  }
  // Receives a value if that needs no wait: ClosedChannel, EAGAIN, EINVAL. Fibers and foreign threads. Never parks.
  int try_receive(T& into) const { return take(into, 0); }
  // The same, but without a value where those return an error. receive() may park.
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

// The result of make(): `auto [tx, rx] = Channel<int>::make(16);`.
template <class T>
class Channel {
 public:
  Sender<T> sender;
  Receiver<T> receiver;

  // Makes a channel with room for `capacity` values, and its first two handles. Without memory both handles are empty. Fibers and foreign
  // threads. Never parks.
  static Channel make(size_t capacity) {
    ChannelCore* c = channel_make(capacity, ChannelSlot<T>::kSize, ChannelSlot<T>::kDrop);
    return Channel{Sender<T>(c), Receiver<T>(c)};
  }
};

// ---- select ----

// One of the operations that a select chooses from. The program may make it anew for each select, or use it again, in one select at a time.
class SelectCase {
 public:
  SelectCase(const SelectCase&) = delete;
  SelectCase& operator=(const SelectCase&) = delete;

 protected:
  using Finish = void (*)(SelectCase& self, int error);
  SelectCase(ChannelCore* channel, bool sends, Finish finish) : channel_(channel), finish_(finish), sends_(sends) {}
  ~SelectCase() = default;

  ChannelCore* channel_;  // null: this case is never chosen
  void* value_ = nullptr;

 private:
  friend struct SelectInside;  // the library
  friend class ChannelCore;
  friend class CaseList;
  Finish finish_;  // called when the case was chosen; null: nothing to do
  SelectCase* next_ = nullptr;
  SelectCase* prev_ = nullptr;
  SelectCase* next_locked_ = nullptr;
  ChannelWait* wait_ = nullptr;
  int32_t index_ = 0;
  bool sends_;
  bool queued_ = false;
};

// Receives a value. It is chosen if a value could be received, which is then in `into`, or if the channel is closed and empty. A case of an
// empty handle is never chosen.
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

// Sends its value. It is chosen if the value could be sent, or if the channel is closed; then it keeps its value. A case without a value is
// never chosen, nor is one of an empty handle. A case has no value once it has sent it, until put() gives it another.
template <class T>
class SendCase : public SelectCase {
 public:
  SendCase(const Sender<T>& to, T v) : SelectCase(nullptr, true, finish), to_(to.core()) {
    value_ = slot_.bytes();
    put(std::move(v));
  }
  ~SendCase() { clear(); }

  // Gives the case another value. Not while a select uses it. Never parks.
  void put(T v) {
    clear();
    slot_.put(std::move(v));
    full_ = true;
    channel_ = to_;
  }
  // Returns the value that has not been sent yet. Only while has_value(). Never parks.
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

// The result of a select.
struct Selected {
  int index;  // of the case, from 0; -1: no case, and `error` says why
  int error;  // of the case: 0 or ClosedChannel; of no case: EAGAIN, ETIMEDOUT, ECANCELED, EINVAL
};

// Waits until one of the cases can happen, does exactly that one and returns its index. If several can happen, it chooses one of them at
// random, each as likely. With the deadline 0 it returns EAGAIN instead of waiting, if at one moment no case could happen. ETIMEDOUT at
// `deadline_ns` on CLOCK_MONOTONIC. ECANCELED: the caller was cancelled. EINVAL: no case can ever happen, and there is no deadline. Fibers
// and foreign threads. May park.
FIBERTHREAD_API Selected select_cases(SelectCase* const* cases, size_t n, uint64_t deadline_ns);

// Waits likewise, without a limit, until a deadline, or for `timeout_ns` nanoseconds. Fibers and foreign threads. May park.
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
// Chooses a case that can happen now, or returns EAGAIN at once (the default of a select). Fibers and foreign threads. Never parks.
template <class... Cases>
Selected try_select(Cases&&... cases) {
  SelectCase* all[] = {&cases..., nullptr};
  return select_cases(all, sizeof...(cases), 0);
}

}  // namespace fiberthread
