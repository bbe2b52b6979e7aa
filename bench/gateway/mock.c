/* A mock OpenAI-style engine: one thread, one epoll, HTTP/1.1 on 127.0.0.1.
 *
 *     mock PORT [PORT...]
 *
 * POST /v1/chat/completions and /v1/completions read three fields of the body: "stream"; "max_tokens", how many
 * chunks a stream has; "seed", the delay between chunks in µs. An even delay gives each stream its own phase, an
 * odd one makes all streams tick together, like the steps of one engine. Each SSE event leaves in a send() of its
 * own, and its content carries T:<16 hex digits>, the monotonic clock in ns, from which the load client computes
 * what a proxy added. With "include_usage" a stream ends with a usage event, as engines do.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FDS = 20000, ACCEPTS_PER_TURN = 64, EVENTS_PER_TURN = 512, LOWEST_READ = 4096 };
enum handled { CLOSE = -1, NEED_MORE = 0, ANSWERED = 1 };

struct buffer {
    char *data;
    size_t used, capacity;
};

struct connection {
    int fd;
    bool listening, streaming, in_step, wants_usage, watches_writable;
    struct buffer in, out;
    size_t out_sent;
    long chunks_left;
    uint64_t delay_ns, due_ns;
    int timer_index, eager_index; /* -1: not in that list */
};

static struct connection *connections[MAX_FDS];
static struct connection *timers[MAX_FDS]; /* heap by due_ns */
static struct connection *eager[MAX_FDS];  /* streams without delay: one chunk a turn */
static int timer_count, eager_count, stream_count, epoll_fd;
static uint64_t requests, chunks;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void reserve(struct buffer *b, size_t capacity) {
    if (capacity <= b->capacity) return;
    b->data = realloc(b->data, capacity);
    if (b->data == NULL) abort();
    b->capacity = capacity;
}

/* ---- timers ---- */

static void timer_place(struct connection *c, int index) {
    timers[index] = c;
    c->timer_index = index;
}

static void timer_swap(int a, int b) {
    struct connection *held = timers[a];
    timer_place(timers[b], a);
    timer_place(held, b);
}

static void timer_up(int i) {
    for (; i > 0 && timers[i]->due_ns < timers[(i - 1) / 2]->due_ns; i = (i - 1) / 2) timer_swap(i, (i - 1) / 2);
}

static void timer_down(int i) {
    for (;;) {
        int least = i;
        for (int child = 2 * i + 1; child <= 2 * i + 2; child++)
            if (child < timer_count && timers[child]->due_ns < timers[least]->due_ns) least = child;
        if (least == i) return;
        timer_swap(i, least);
        i = least;
    }
}

static void timer_add(struct connection *c) {
    timer_place(c, timer_count++);
    timer_up(c->timer_index);
}

static void timer_remove(struct connection *c) {
    int i = c->timer_index;
    if (i < 0) return;
    c->timer_index = -1;
    if (i == --timer_count) return;
    timer_place(timers[timer_count], i);
    timer_up(i);
    timer_down(timers[i]->timer_index);
}

static void eager_add(struct connection *c) {
    if (c->eager_index >= 0) return;
    c->eager_index = eager_count;
    eager[eager_count++] = c;
}

static void eager_remove(struct connection *c) {
    int i = c->eager_index;
    if (i < 0) return;
    c->eager_index = -1;
    if (i == --eager_count) return;
    eager[i] = eager[eager_count];
    eager[i]->eager_index = i;
}

/* ---- connections ---- */

static struct connection *connection_new(int fd, bool listening) {
    struct connection *c = calloc(1, sizeof *c);
    if (c == NULL) abort();
    c->fd = fd;
    c->listening = listening;
    c->timer_index = c->eager_index = -1;
    connections[fd] = c;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    return c;
}

static void connection_close(struct connection *c) {
    timer_remove(c);
    eager_remove(c);
    stream_count -= c->streaming;
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

static void watch_writable(struct connection *c, bool wanted) {
    if (c->watches_writable == wanted) return;
    c->watches_writable = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

/* Sends, or keeps for later what the socket does not take. False: the peer is gone. */
static bool put(struct connection *c, const char *data, size_t size) {
    if (c->out.used == 0) {
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
        if (sent == (ssize_t)size) return true;
        if (sent < 0 && errno != EAGAIN) return false;
        if (sent > 0) data += sent, size -= (size_t)sent;
    }
    if (c->out.used + size > c->out.capacity) reserve(&c->out, 2 * (c->out.used + size));
    memcpy(c->out.data + c->out.used, data, size);
    c->out.used += size;
    watch_writable(c, true);
    return true;
}

/* ---- answers, written once ---- */

#define ENVELOPE "\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion"
#define CREATED ",\"created\":1767225600,\"model\":\"mock-model\",\"choices\":["
#define USAGE "\"usage\":{\"prompt_tokens\":200,\"total_tokens\":300,\"completion_tokens\":100}"

struct event {
    char bytes[640];
    size_t size, stamp;
};

static struct event middle_event, last_event, usage_event, end_event;
static char plain_answer[4096];
static size_t plain_size;
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

static void make_event(struct event *e, const char *payload, const char *after) {
    size_t size = strlen("data: ") + strlen(payload) + strlen("\n\n");
    e->size = (size_t)snprintf(e->bytes, sizeof e->bytes, "%zx\r\ndata: %s\n\n\r\n%s", size, payload, after);
    char *stamp = strstr(e->bytes, "T:");
    e->stamp = stamp ? (size_t)(stamp - e->bytes) + 2 : 0;
}

static void make_answers(void) {
    const char *format = "{" ENVELOPE ".chunk\"" CREATED
                         "{\"index\":0,\"delta\":{\"content\":\"T:0000000000000000\"},\"finish_reason\":%s}]}";
    char payload[512], text[701], body[2048];
    snprintf(payload, sizeof payload, format, "null");
    make_event(&middle_event, payload, "");
    snprintf(payload, sizeof payload, format, "\"stop\"");
    make_event(&last_event, payload, "");
    make_event(&usage_event, "{" ENVELOPE ".chunk\"" CREATED "]," USAGE "}", "");
    make_event(&end_event, "[DONE]", "0\r\n\r\n");
    for (int i = 0; i < 700; i++) text[i] = i % 6 == 5 ? ' ' : (char)('a' + (i * 7) % 26);
    text[700] = 0;
    size_t size = (size_t)snprintf(body, sizeof body,
                                   "{" ENVELOPE "\"" CREATED
                                   "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},"
                                   "\"logprobs\":null,\"finish_reason\":\"stop\"}]," USAGE "}",
                                   text);
    plain_size = (size_t)snprintf(plain_answer, sizeof plain_answer,
                                  "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                                  "content-length: %zu\r\ncontent-type: application/json\r\n\r\n%s",
                                  size, body);
}

static bool put_small(struct connection *c, const char *status, const char *type, const char *body) {
    char answer[2048];
    int size = snprintf(answer, sizeof answer, "HTTP/1.1 %s\r\ncontent-length: %zu\r\ncontent-type: %s\r\n\r\n%s", status,
                        strlen(body), type, body);
    return put(c, answer, (size_t)size);
}

static bool put_metrics(struct connection *c) {
    char text[1024];
    snprintf(text, sizeof text,
             "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"mock-model\"} %d.0\n"
             "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"mock-model\"} 0.0\n"
             "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"mock-model\"} 0.0\n"
             "# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total{model_name=\"mock-model\"} 0.0\n"
             "# TYPE vllm:cache_config_info gauge\n"
             "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100000\"} 1.0\n",
             stream_count);
    return put_small(c, "200 OK", "text/plain; version=0.0.4", text);
}

/* ---- streams ---- */

/* One chunk, and the end after the last. */
static enum handled put_chunk(struct connection *c) {
    struct event *e = c->chunks_left <= 1 ? &last_event : &middle_event;
    uint64_t stamp = now_ns();
    for (int i = 15; i >= 0; i--, stamp >>= 4) e->bytes[e->stamp + (size_t)i] = "0123456789abcdef"[stamp & 15];
    chunks++;
    if (!put(c, e->bytes, e->size)) return CLOSE;
    if (--c->chunks_left > 0) return NEED_MORE;
    c->streaming = false;
    stream_count--;
    if (c->wants_usage && !put(c, usage_event.bytes, usage_event.size)) return CLOSE;
    return put(c, end_event.bytes, end_event.size) ? ANSWERED : CLOSE;
}

static const char *field(const char *body, size_t size, const char *quoted_name) {
    const char *p = memmem(body, size, quoted_name, strlen(quoted_name));
    if (p == NULL) return NULL;
    p += strlen(quoted_name);
    while (p < body + size && (*p == ' ' || *p == ':')) p++;
    return p < body + size ? p : NULL;
}

static long number_field(const char *body, size_t size, const char *quoted_name, long otherwise) {
    const char *p = field(body, size, quoted_name);
    return p ? strtol(p, NULL, 10) : otherwise;
}

static bool true_field(const char *body, size_t size, const char *quoted_name) {
    const char *p = field(body, size, quoted_name);
    return p && *p == 't';
}

static bool start_stream(struct connection *c, const char *body, size_t size) {
    long asked = number_field(body, size, "\"max_tokens\"", -1);
    if (asked <= 0) asked = number_field(body, size, "\"max_completion_tokens\"", 128);
    long delay_us = number_field(body, size, "\"seed\"", 0);
    c->chunks_left = asked;
    c->in_step = delay_us & 1;
    c->delay_ns = (uint64_t)(delay_us & ~1L) * 1000;
    c->wants_usage = true_field(body, size, "\"include_usage\"");
    c->streaming = true;
    stream_count++;
    if (!put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1)) return false;
    if (c->delay_ns == 0) {
        eager_add(c);
        return true;
    }
    uint64_t now = now_ns();
    c->due_ns = c->in_step ? (now / c->delay_ns + 1) * c->delay_ns : now;
    timer_add(c);
    return true;
}

/* ---- requests ---- */

struct request {
    const char *path, *body;
    size_t path_size, body_size, total;
};

static bool path_is(const struct request *r, const char *path) {
    size_t size = strlen(path);
    return r->path_size >= size && memcmp(r->path, path, size) == 0 && (r->path_size == size || r->path[size] == '?');
}

/* The body of a chunked request, joined into `joined`. Returns where it ends, or 0 for "not all here yet". */
static size_t join_chunks(const struct connection *c, size_t at, struct buffer *joined) {
    joined->used = 0;
    for (;;) {
        const char *line_end = memmem(c->in.data + at, c->in.used - at, "\r\n", 2);
        if (line_end == NULL) return 0;
        size_t size = strtoul(c->in.data + at, NULL, 16), start = (size_t)(line_end - c->in.data) + 2;
        if (start + size + 2 > c->in.used) return 0;
        if (size == 0) return start + 2;
        reserve(joined, joined->used + size);
        memcpy(joined->data + joined->used, c->in.data + start, size);
        joined->used += size;
        at = start + size + 2;
    }
}

static enum handled parse(struct connection *c, struct request *r) {
    static struct buffer joined;
    char *end = memmem(c->in.data, c->in.used, "\r\n\r\n", 4);
    if (end == NULL) return NEED_MORE;
    size_t head = (size_t)(end - c->in.data) + 4;
    bool chunked = false;
    r->body_size = 0;
    *end = 0;
    for (char *line = strstr(c->in.data, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, "content-length:", 15) == 0) r->body_size = strtoul(line + 17, NULL, 10);
        if (strncasecmp(line + 2, "transfer-encoding:", 18) == 0) chunked = strcasestr(line + 20, "chunked") != NULL;
    }
    *end = '\r';
    r->body = c->in.data + head;
    r->total = head + r->body_size;
    if (chunked) {
        r->total = join_chunks(c, head, &joined);
        if (r->total == 0) return NEED_MORE;
        r->body = joined.data;
        r->body_size = joined.used;
    }
    if (r->total > c->in.used) return NEED_MORE;
    char *blank = memchr(c->in.data, ' ', head), *second = blank ? memchr(blank + 1, ' ', head - 1) : NULL;
    if (second == NULL) return CLOSE;
    r->path = blank + 1;
    r->path_size = (size_t)(second - r->path);
    return ANSWERED;
}

static bool answer(struct connection *c, const struct request *r) {
    if (path_is(r, "/v1/chat/completions") || path_is(r, "/v1/completions"))
        return true_field(r->body, r->body_size, "\"stream\"") ? start_stream(c, r->body, r->body_size)
                                                               : put(c, plain_answer, plain_size);
    if (path_is(r, "/health") || path_is(r, "/ping")) return put_small(c, "200 OK", "application/json", "");
    if (path_is(r, "/metrics")) return put_metrics(c);
    if (path_is(r, "/v1/models"))
        return put_small(c, "200 OK", "application/json",
                         "{\"object\":\"list\",\"data\":[{\"id\":\"mock-model\",\"object\":\"model\","
                         "\"created\":1767225600,\"owned_by\":\"vllm\",\"max_model_len\":32768}]}");
    if (path_is(r, "/stats")) {
        char text[96];
        snprintf(text, sizeof text, "{\"requests\":%lu,\"chunks\":%lu,\"streams\":%d}", requests, chunks, stream_count);
        return put_small(c, "200 OK", "application/json", text);
    }
    return put_small(c, "404 Not Found", "application/json", "{\"error\":{\"message\":\"not found\"}}");
}

/* Answers the whole requests that have come, one stream at a time. False: close. */
static bool handle_input(struct connection *c) {
    while (!c->streaming && c->in.used > 0) {
        struct request r;
        enum handled state = parse(c, &r);
        if (state == CLOSE) return false;
        if (state == NEED_MORE) return true;
        requests++;
        if (!answer(c, &r)) return false;
        memmove(c->in.data, c->in.data + r.total, c->in.used - r.total);
        c->in.used -= r.total;
    }
    return true;
}

/* ---- turns of the loop ---- */

static void accept_some(int listener) {
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), on = 1;
        if (fd < 0) return;
        if (fd >= MAX_FDS) {
            close(fd);
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection_new(fd, false);
    }
}

static bool on_readable(struct connection *c) {
    if (c->in.capacity - c->in.used < LOWEST_READ) reserve(&c->in, 2 * c->in.capacity + 2 * LOWEST_READ);
    ssize_t got = recv(c->fd, c->in.data + c->in.used, c->in.capacity - c->in.used - 1, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
    if (got < 0) return true;
    c->in.used += (size_t)got;
    c->in.data[c->in.used] = 0;
    return handle_input(c);
}

static bool on_writable(struct connection *c) {
    ssize_t sent = send(c->fd, c->out.data + c->out_sent, c->out.used - c->out_sent, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    c->out_sent += (size_t)sent;
    if (c->out_sent < c->out.used) return true;
    c->out_sent = c->out.used = 0;
    watch_writable(c, false);
    if (c->streaming && c->delay_ns == 0) eager_add(c);
    return handle_input(c);
}

static void run_eager(void) {
    for (int i = 0; i < eager_count;) {
        struct connection *c = eager[i];
        enum handled state = put_chunk(c);
        if (state == NEED_MORE && c->out.used == 0) {
            i++;
            continue;
        }
        eager_remove(c); /* another takes its place at i */
        if (state == CLOSE || (state == ANSWERED && !handle_input(c))) connection_close(c);
    }
}

static void run_timers(void) {
    uint64_t now = now_ns();
    while (timer_count > 0 && timers[0]->due_ns <= now) {
        struct connection *c = timers[0];
        enum handled state = put_chunk(c);
        if (state == NEED_MORE) {
            c->due_ns += c->delay_ns;
            if (c->due_ns < now) c->due_ns = now + c->delay_ns / 8; /* late: catch up gently */
            timer_down(0);
            continue;
        }
        timer_remove(c);
        if (state == CLOSE || !handle_input(c)) connection_close(c);
    }
}

static int wait_for_events(struct epoll_event *events) {
    struct timespec patience = {0, 0}, *timeout = NULL;
    if (eager_count > 0) {
        timeout = &patience;
    } else if (timer_count > 0) {
        uint64_t now = now_ns(), rest = timers[0]->due_ns > now ? timers[0]->due_ns - now : 0;
        patience = (struct timespec){(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
        timeout = &patience;
    }
    return epoll_pwait2(epoll_fd, events, EVENTS_PER_TURN, timeout, NULL);
}

static bool listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0) {
        fprintf(stderr, "mock: cannot listen on 127.0.0.1:%d: %s\n", port, strerror(errno));
        return false;
    }
    connection_new(fd, true);
    return true;
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    make_answers();
    epoll_fd = epoll_create1(0);
    if (count < 2) {
        fprintf(stderr, "usage: mock PORT [PORT...]\n");
        return 2;
    }
    for (int i = 1; i < count; i++)
        if (!listen_on(atoi(words[i]))) return 1;
    for (;;) {
        struct epoll_event events[EVENTS_PER_TURN];
        int ready = wait_for_events(events);
        for (int i = 0; i < ready; i++) {
            struct connection *c = connections[events[i].data.fd];
            if (c == NULL) continue;
            bool alive = true;
            if (c->listening) {
                accept_some(c->fd);
                continue;
            }
            if (events[i].events & EPOLLOUT && c->out.used > 0) alive = on_writable(c);
            if (alive && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) alive = on_readable(c);
            if (!alive) connection_close(c);
        }
        run_eager();
        run_timers();
    }
}
