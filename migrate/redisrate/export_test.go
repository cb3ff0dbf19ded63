package redisrate

// MaxLimits is how many limits a limiter keeps compiled.
const MaxLimits = maxLimits

// Kept returns how many limits l keeps compiled.
func Kept(l *Limiter) int {
	l.state.mu.RLock()
	defer l.state.mu.RUnlock()
	return len(l.state.byLimit)
}
