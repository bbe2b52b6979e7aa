/* An HTTP/1.1 load client: one thread, one epoll, 127.0.0.1 only, always ends after --warm + --dur seconds.
 *
 *     --mode closed   --conns keep-alive connections, each sends its next request once the last is answered
 *     --mode paced    the same with streams (--stream 1): --n chunks, --delay µs apart, begun over --ramp ms
 *     --mode rate     open loop: --rate requests/s on --conns connections, latency counted from the due time
 *     --pids A,B      sum these processes' CPU time over the measured window; --rss 1: their memory (PSS) at its end
 *
 * The mock engine stamps its chunks T:<16 hex digits> with the monotonic clock; arrival minus stamp is what the
 * way from there to here took. Prints one JSON line.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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

enum { HEAD_LIMIT = 8000, EVENTS_PER_TURN = 1024, STAMP_DIGITS = 16, MAX_PIDS = 64 };
enum stage { IDLE, HEAD, BODY };
enum chunk_part { SIZE_LINE, DATA, DATA_END, TRAILER };
enum fed { BROKEN = -1, MORE = 0, COMPLETE = 1 };

struct connection {
    int fd;
    enum stage stage;
    uint64_t began_ns;
    bool awaits_first;
    char head[HEAD_LIMIT + 1];
    size_t head_size;
    int status;
    bool chunked;
    enum chunk_part part;
    size_t body_left, chunk_size, line_size; /* line_size: of the trailer line being read */
    int stamp_matched;                       /* characters of "T:<16 hex>" seen so far, across reads */
    uint64_t stamp;
};

struct samples {
    float *us;
    size_t count, capacity;
};

struct counters {
    uint64_t ok, bad, refused, chunks; /* refused: 429, also counted as bad */
};

static struct {
    int port, connections, stream, chunks, delay_us, rate, body_bytes, ramp_ms, memory;
    double measure_s, warm_s;
    const char *mode, *path, *key;
    int pids[MAX_PIDS], pid_count;
} option = {.connections = 64, .chunks = 128, .rate = 200, .body_bytes = 1024, .measure_s = 5, .warm_s = 1,
            .mode = "closed", .path = "/v1/chat/completions"};

static struct connection *all, **idle;
static int idle_count, epoll_fd;
static char *request;
static size_t request_size;
static struct counters total, at_window;
static uint64_t resets, unsent;
static bool in_window;
static struct samples latency, first_token;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static void sample(struct samples *s, int64_t ns) {
    if (!in_window) return;
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 65536;
        s->us = realloc(s->us, s->capacity * sizeof *s->us);
        if (s->us == NULL) abort();
    }
    s->us[s->count++] = (float)ns / 1000;
}

/* ---- what the measured processes use ---- */

static uint64_t process_cpu_ns(int pid) {
    char path[320];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL) return 0;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, task->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        unsigned long long ran = 0;
        if (fscanf(file, "%llu", &ran) == 1) sum += ran;
        fclose(file);
    }
    closedir(tasks);
    return sum;
}

static long process_pss_kb(int pid) {
    char path[64], line[256];
    long found = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Pss: %ld", &found) == 1) break;
    fclose(file);
    return found;
}

static uint64_t watched_cpu_ns(void) {
    uint64_t sum = 0;
    for (int i = 0; i < option.pid_count; i++) sum += process_cpu_ns(option.pids[i]);
    return sum;
}

static long watched_pss_kb(void) {
    long sum = 0;
    for (int i = 0; i < option.pid_count; i++) sum += process_pss_kb(option.pids[i]);
    return sum;
}

/* ---- sending ---- */

static bool dial(struct connection *c) {
    int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->stage = IDLE;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(c->fd);
        c->fd = -1;
        return false;
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    return true;
}

static void hang_up(struct connection *c) {
    close(c->fd);
    c->fd = -1;
    c->stage = IDLE;
}

static bool send_all(int fd) {
    for (size_t sent = 0; sent < request_size;) {
        ssize_t n = send(fd, request + sent, request_size - sent, MSG_NOSIGNAL);
        if (n > 0) {
            sent += (size_t)n;
            continue;
        }
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        if (errno != EAGAIN || poll(&room, 1, 1000) != 1) return false;
    }
    return true;
}

/* Sends the next request; a keep-alive connection that the proxy closed meanwhile is dialled again, once. */
static void begin(struct connection *c, uint64_t due_ns) {
    for (int attempt = 0; attempt < 2; attempt++) {
        if (c->fd < 0 && !dial(c)) break;
        c->began_ns = due_ns;
        c->awaits_first = true;
        c->stage = HEAD;
        c->head_size = 0;
        c->stamp_matched = 0;
        if (send_all(c->fd)) return;
        hang_up(c);
        resets++;
    }
    total.bad++;
}

/* ---- reading ---- */

static int hex(char ch) { return ch <= '9' ? ch - '0' : (ch | 32) - 'a' + 10; }

static void stamp_found(struct connection *c, uint64_t arrived_ns) {
    total.chunks++;
    sample(&latency, (int64_t)(arrived_ns - c->stamp));
    if (c->awaits_first) sample(&first_token, (int64_t)(arrived_ns - c->began_ns));
    c->awaits_first = false;
}

static void find_stamps(struct connection *c, const char *p, size_t size, uint64_t arrived_ns) {
    const char *end = p + size;
    while (p < end) {
        if (c->stamp_matched == 0) {
            p = memchr(p, 'T', (size_t)(end - p));
            if (p == NULL) return;
            p++;
            c->stamp_matched = 1;
        } else if (c->stamp_matched == 1) {
            c->stamp_matched = *p == ':' ? 2 : 0;
            p += *p == ':';
            c->stamp = 0;
        } else {
            c->stamp = c->stamp << 4 | (uint64_t)hex(*p++);
            if (++c->stamp_matched == 2 + STAMP_DIGITS) {
                stamp_found(c, arrived_ns);
                c->stamp_matched = 0;
            }
        }
    }
}

/* Takes bytes of the head. Returns how many it used; the stage is BODY once the head is whole. */
static size_t feed_head(struct connection *c, const char *data, size_t size) {
    size_t before = c->head_size, room = HEAD_LIMIT - before, taken = size < room ? size : room;
    memcpy(c->head + before, data, taken);
    c->head_size += taken;
    c->head[c->head_size] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (end == NULL) return taken;
    *end = 0;
    c->status = atoi(c->head + strlen("HTTP/1.1 "));
    c->chunked = false;
    c->body_left = 0;
    for (char *line = strstr(c->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, "content-length:", 15) == 0) c->body_left = strtoul(line + 17, NULL, 10);
        if (strncasecmp(line + 2, "transfer-encoding:", 18) == 0) c->chunked = true;
    }
    c->stage = c->status == 100 ? HEAD : BODY;
    c->head_size = 0;
    c->part = SIZE_LINE;
    c->chunk_size = 0;
    return (size_t)(end - c->head) + 4 - before;
}

/* One character of the framing between chunks; COMPLETE after the last line. */
static enum fed feed_framing(struct connection *c, char ch) {
    if (ch == '\r') return MORE;
    if (ch != '\n') {
        if (c->part == SIZE_LINE) c->chunk_size = c->chunk_size * 16 + (size_t)hex(ch);
        c->line_size++;
        return MORE;
    }
    if (c->part == TRAILER && c->line_size == 0) return COMPLETE;
    if (c->part == SIZE_LINE) {
        c->part = c->chunk_size == 0 ? TRAILER : DATA;
        c->body_left = c->chunk_size;
    } else if (c->part == DATA_END) {
        c->part = SIZE_LINE;
        c->chunk_size = 0;
    }
    c->line_size = 0;
    return MORE;
}

static size_t feed_data(struct connection *c, const char *data, size_t size, uint64_t arrived_ns) {
    size_t taken = size < c->body_left ? size : c->body_left;
    if (option.stream) find_stamps(c, data, taken, arrived_ns);
    c->body_left -= taken;
    if (c->body_left == 0 && c->chunked) c->part = DATA_END;
    return taken;
}

static enum fed feed(struct connection *c, const char *data, size_t size, uint64_t arrived_ns) {
    while (size > 0) {
        size_t taken = 1;
        enum fed state = MORE;
        if (c->stage == HEAD) {
            if (c->head_size == HEAD_LIMIT) return BROKEN;
            taken = feed_head(c, data, size);
            if (c->stage == BODY && !c->chunked && c->body_left == 0) state = COMPLETE;
        } else if (!c->chunked || c->part == DATA) {
            taken = feed_data(c, data, size, arrived_ns);
            if (!c->chunked && c->body_left == 0) state = COMPLETE;
        } else {
            state = feed_framing(c, *data);
        }
        data += taken;
        size -= taken;
        if (state == COMPLETE) return size > 0 ? BROKEN : COMPLETE;
    }
    return MORE;
}

static void next_request(struct connection *c) {
    c->stage = IDLE;
    if (option.rate == 0) {
        begin(c, now_ns());
    } else {
        if (c->fd < 0) dial(c);
        idle[idle_count++] = c;
    }
}

static void on_readable(struct connection *c) {
    static char data[262144];
    ssize_t got = recv(c->fd, data, sizeof data, 0);
    uint64_t arrived_ns = now_ns();
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0 && c->stage == IDLE) return;
    enum fed state = got > 0 ? feed(c, data, (size_t)got, arrived_ns) : BROKEN;
    if (state == MORE) return;
    if (state == BROKEN) {
        bool waiting = c->stage != IDLE;
        resets += got <= 0;
        total.bad += waiting;
        hang_up(c);
        if (waiting || option.rate == 0) next_request(c);
        return;
    }
    total.ok += c->status == 200;
    total.bad += c->status != 200;
    total.refused += c->status == 429;
    if (!option.stream) sample(&latency, (int64_t)(arrived_ns - c->began_ns));
    next_request(c);
}

/* ---- the run ---- */

static void make_request(void) {
    int letters = option.body_bytes > 200 ? option.body_bytes - 200 : option.body_bytes;
    char *text = malloc((size_t)letters + 1), *body, key[256] = "";
    for (int i = 0; i < letters; i++) text[i] = i % 6 == 5 ? ' ' : (char)('a' + (i * 7) % 26);
    text[letters] = 0;
    int size = asprintf(&body,
                        "{\"model\":\"mock-model\",\"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful "
                        "assistant.\"},{\"role\":\"user\",\"content\":\"%s\"}],\"stream\":%s,\"max_tokens\":%d,"
                        "\"seed\":%d,\"temperature\":0.7}",
                        text, option.stream ? "true" : "false", option.chunks, option.delay_us);
    if (option.key) snprintf(key, sizeof key, "Authorization: Bearer %s\r\n", option.key);
    request_size = (size_t)asprintf(&request,
                                    "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load/1\r\nAccept: */*\r\n"
                                    "%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                                    option.path, option.port, key, size, body);
    free(text);
    free(body);
}

/* Starts what is due at `now` and returns when the next is, or `horizon`. */
static uint64_t start_due(uint64_t now, uint64_t start, uint64_t horizon) {
    static int begun;
    static uint64_t due;
    if (option.rate == 0) {
        for (; begun < option.connections; begun++) {
            uint64_t at = start + (uint64_t)option.ramp_ms * 1000000u * (uint64_t)begun / (uint64_t)option.connections;
            if (at > now) return at < horizon ? at : horizon;
            begin(&all[begun], now_ns());
        }
        return horizon;
    }
    if (due == 0) due = start;
    for (; due <= now; due += 1000000000u / (uint64_t)option.rate) {
        if (idle_count > 0) begin(idle[--idle_count], due);
        else unsent++;
    }
    return due < horizon ? due : horizon;
}

static void run_until(uint64_t end, uint64_t start) {
    struct epoll_event events[EVENTS_PER_TURN];
    for (uint64_t now; (now = now_ns()) < end;) {
        uint64_t next = start_due(now, start, end);
        now = now_ns();
        uint64_t rest = next > now ? next - now : 0;
        struct timespec patience = {(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
        int ready = epoll_pwait2(epoll_fd, events, EVENTS_PER_TURN, &patience, NULL);
        for (int i = 0; i < ready; i++) on_readable(events[i].data.ptr);
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *s) {
    if (s->count == 0) return;
    double sum = 0;
    qsort(s->us, s->count, sizeof *s->us, by_size);
    for (size_t i = 0; i < s->count; i++) sum += s->us[i];
    printf(",\"%s\":{\"n\":%zu,\"mean\":%.1f", name, s->count, sum / (double)s->count);
    const double at[] = {0.5, 0.9, 0.99, 0.999};
    const char *as[] = {"p50", "p90", "p99", "p999"};
    for (int i = 0; i < 4; i++) printf(",\"%s\":%.1f", as[i], s->us[(size_t)((double)s->count * at[i])]);
    printf(",\"max\":%.1f}", s->us[s->count - 1]);
}

static void measure(void) {
    uint64_t start = now_ns(), warm = start + (uint64_t)(option.warm_s * 1e9);
    run_until(warm, start);
    at_window = total;
    in_window = true;
    uint64_t cpu = watched_cpu_ns(), own = clock_ns(CLOCK_PROCESS_CPUTIME_ID), begun = now_ns();
    run_until(warm + (uint64_t)(option.measure_s * 1e9), start);
    double window_s = (double)(now_ns() - begun) / 1e9;
    double cpu_us = (double)(watched_cpu_ns() - cpu) / 1e3, own_s = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - own) / 1e9;
    uint64_t ok = total.ok - at_window.ok, refused = total.refused - at_window.refused;
    uint64_t answered = ok + refused, chunks = total.chunks - at_window.chunks;
    printf("{\"mode\":\"%s\",\"stream\":%d,\"connections\":%d,\"window_s\":%.3f,\"ok\":%lu,\"bad\":%lu,\"refused\":%lu",
           option.mode, option.stream, option.connections, window_s, ok, total.bad - at_window.bad, refused);
    printf(",\"resets\":%lu,\"unsent\":%lu,\"requests_per_s\":%.1f,\"chunks\":%lu,\"chunks_per_s\":%.1f,\"load_cpu\":%.3f",
           resets, unsent, (double)answered / window_s, chunks, (double)chunks / window_s, own_s / window_s);
    if (option.pid_count > 0) printf(",\"proxy_cpu\":%.4f", cpu_us / 1e6 / window_s);
    if (option.pid_count > 0 && answered > 0) printf(",\"us_per_req\":%.2f", cpu_us / (double)answered);
    if (option.pid_count > 0 && chunks > 0) printf(",\"us_per_chunk\":%.3f", cpu_us / (double)chunks);
    if (option.memory) printf(",\"pss_kb\":%ld", watched_pss_kb());
    print_samples("lat_us", &latency);
    print_samples("ttft_us", &first_token);
    printf("}\n");
}

static void parse_pids(char *text) {
    for (char *pid = strtok(text, ","); pid && option.pid_count < MAX_PIDS; pid = strtok(NULL, ","))
        option.pids[option.pid_count++] = atoi(pid);
}

static bool parse_options(int count, char **words) {
    static const struct option known[] = {
        {"port", 1, 0, 'p'},  {"conns", 1, 0, 'c'}, {"stream", 1, 0, 's'}, {"n", 1, 0, 'n'},    {"delay", 1, 0, 'd'},
        {"rate", 1, 0, 'r'},  {"dur", 1, 0, 't'},   {"warm", 1, 0, 'w'},   {"mode", 1, 0, 'm'}, {"path", 1, 0, 'P'},
        {"pids", 1, 0, 'i'},  {"bodysz", 1, 0, 'b'}, {"ramp", 1, 0, 'R'},  {"rss", 1, 0, 'M'},  {"auth", 1, 0, 'A'},
        {0},
    };
    for (int ch; (ch = getopt_long(count, words, "", known, NULL)) != -1;) switch (ch) {
            case 'p': option.port = atoi(optarg); break;
            case 'c': option.connections = atoi(optarg); break;
            case 's': option.stream = atoi(optarg); break;
            case 'n': option.chunks = atoi(optarg); break;
            case 'd': option.delay_us = atoi(optarg); break;
            case 'r': option.rate = atoi(optarg); break;
            case 't': option.measure_s = atof(optarg); break;
            case 'w': option.warm_s = atof(optarg); break;
            case 'm': option.mode = optarg; break;
            case 'P': option.path = optarg; break;
            case 'i': parse_pids(optarg); break;
            case 'b': option.body_bytes = atoi(optarg); break;
            case 'R': option.ramp_ms = atoi(optarg); break;
            case 'M': option.memory = atoi(optarg); break;
            case 'A': option.key = optarg; break;
            default: return false;
        }
    if (strcmp(option.mode, "rate") != 0) option.rate = 0;
    return option.port > 0 && option.connections > 0 && option.rate >= 0;
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    if (!parse_options(count, words)) {
        fprintf(stderr, "usage: load --port PORT [--mode closed|paced|rate] [options; see the top of load.c]\n");
        return 2;
    }
    make_request();
    epoll_fd = epoll_create1(0);
    all = calloc((size_t)option.connections, sizeof *all);
    idle = calloc((size_t)option.connections, sizeof *idle);
    for (int i = 0; i < option.connections; i++) all[i].fd = -1;
    for (int i = 0; option.rate > 0 && i < option.connections; i++) {
        if (!dial(&all[i])) {
            fprintf(stderr, "load: nothing listens on 127.0.0.1:%d\n", option.port);
            return 1;
        }
        idle[idle_count++] = &all[i];
    }
    measure();
}
